"""`/v1/models` of several backends as one list: every model once, as a backend that serves it writes it.

It has only what those backends told somebody without a key, so nobody learns more here than there.
"""

from collections.abc import Sequence

from kvguard.engines.reading import ModelEntry
from kvguard.pool.backend import Backend


def merged(backends: Sequence[Backend]) -> bytes | None:
    """Both engines' form of a list, base models first and each kind by name; None where all backends list the same, so
    that any of them may be asked.
    """
    contexts = [{name: entry.context_tokens for name, entry in backend.listing.items()} for backend in backends]
    if all(listed == contexts[0] for listed in contexts):
        return None
    adapters = {name for backend in backends for name in backend.parents}
    names = {name for backend in backends for name in backend.listing}
    ordered = sorted(names, key=lambda name: (name in adapters, name))
    return b'{"object":"list","data":[%s]}' % b",".join(_entry(name, backends).body for name in ordered)


def _entry(name: str, backends: Sequence[Backend]) -> ModelEntry:
    """Of several the one with the smallest context: a request of that length is served wherever it goes."""
    entries = [backend.listing[name] for backend in backends if name in backend.listing]
    return min(entries, key=lambda entry: (entry.context_tokens is None, entry.context_tokens or 0))
