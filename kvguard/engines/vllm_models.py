"""vLLM's `/v1/models` -> what it serves."""

from collections.abc import Iterable
from typing import Final

import msgspec

from kvguard.admission.usage import UsageSample
from kvguard.engines.reading import ModelEntry, Reading, ServerFacts
from kvguard.engines.vllm import parse_vllm

PATH: Final = "/v1/models"
EVERY_SECONDS: Final = 60.0
MAX_LISTING_BYTES: Final = 1024 * 1024  # some two thousand entries


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None

    @property
    def context_tokens(self) -> int | None:
        return self.max_model_len if self.max_model_len is not None and self.max_model_len > 0 else None


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


_decoder = msgspec.json.Decoder(_Models)
_entry_decoder = msgspec.json.Decoder(_Model)


def parse_models(body: bytes) -> ServerFacts:
    """Names, adapters and their entries. Raises ValueError (msgspec's are) for anything else.

    A server has one base model under one name or several. Its entries all name the one context there is, those of
    adapters none.
    """
    entries = [(_entry_decoder.decode(raw), raw) for raw in _decoder.decode(body).data]
    models = [model for model, _ in entries]
    lengths = [length for model in models if (length := model.context_tokens) is not None]
    return ServerFacts(
        models=frozenset(model.id for model in models),
        parents={model.id: model.parent for model in models if model.parent},
        listing=_listing(entries),
        context_tokens=max(lengths, default=None),
    )


def _listing(entries: Iterable[tuple[_Model, msgspec.Raw]]) -> dict[str, ModelEntry]:
    """The first entry of every name, up to MAX_LISTING_BYTES in all."""
    listing: dict[str, ModelEntry] = {}
    size = 0
    for model, raw in entries:
        size += len(memoryview(raw))
        if size > MAX_LISTING_BYTES:
            break
        listing.setdefault(model.id, ModelEntry(body=bytes(raw), context_tokens=model.context_tokens))
    return listing


def vllm_reading(*, kv_usage_metric: str | None = None) -> Reading:
    """How vLLM tells: its metrics say how large its cache is. `kv_usage_metric` replaces the known gauge names."""

    def usage(page: str, _: ServerFacts) -> UsageSample:
        return parse_vllm(page, kv_usage_metric=kv_usage_metric)

    return Reading(facts_path=PATH, facts_seconds=EVERY_SECONDS, facts=parse_models, usage=usage)
