"""Which backends have probably seen the beginning of a prompt: where it last went, and where it would go first.

Prompts that begin alike, or requests of one session, are kept together as long as that costs no balance: a preferred
backend is chosen only in a near tie. Where a prompt never went before, a consistent hash says where to begin,
so that several kvguards in front of the same backends agree and a backend more or less moves few prompts.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_POINTS: Final = 64  # of each backend on the ring
_REMEMBERED: Final = 262_144


@dataclass(frozen=True, slots=True)
class Trail:
    """What tells that requests belong together, as 64-bit hashes: their `session`, and the leading parts of the prompt,
    each with all before it, shortest first.
    """

    session: int | None = None
    parts: tuple[int, ...] = ()

    @property
    def start(self) -> int | None:
        """What it is placed by where nothing is remembered."""
        return self.session if self.session is not None else next(iter(self.parts), None)

    def __iter__(self) -> Iterator[int]:
        """From what says most to what says least."""
        if self.session is not None:
            yield self.session
        yield from reversed(self.parts)


NO_TRAIL: Final = Trail()


def session_key(session: bytes) -> int:
    """What a trail says of a session."""
    return _hashed(b"session:" + session)


class Affinity:
    """Where the prompts of one pool went. Of at most about `remembered` the less recent half is forgotten at a time."""

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        # Two generations, the younger of which takes the place of the older once it is large: to forget entry by entry
        # would hold up a request for milliseconds, with thousands of gaps in a table or when it is made anew.
        self._went: dict[int, str] = {}
        self._went_before: dict[int, str] = {}
        self._known: frozenset[str] = frozenset()
        self._points: list[int] = []
        self._names: list[str] = []

    def among(self, names: Iterable[str]) -> None:
        """From now on these are the backends."""
        self._known = frozenset(names)
        ring = sorted((_hashed(f"{name}#{point}".encode()), name) for name in self._known for point in range(_POINTS))
        self._points, self._names = [point for point, _ in ring], [name for _, name in ring]

    def preferred(self, trail: Trail) -> str | None:
        """Where the longest beginning of the prompt went that went anywhere, or else where it would go first."""
        went = next((name for name in map(self._last, trail) if name in self._known), None)
        if went is not None or trail.start is None or not self._points:
            return went
        return self._names[bisect_right(self._points, trail.start) % len(self._names)]

    def _last(self, key: int) -> str | None:
        return self._went.get(key) or self._went_before.get(key)

    def sent(self, trail: Trail, name: str) -> None:
        """A request went to this backend."""
        if len(self._went) >= self._remembered // 2:
            self._went_before, self._went = self._went, {}
        self._went.update(dict.fromkeys(trail, name))


def _hashed(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
