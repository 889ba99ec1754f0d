"""vLLM's `/v1/models` -> what it serves."""

from typing import Final

import msgspec

from kvguard.admission.usage import UsageSample
from kvguard.engines.reading import Reading, ServerFacts
from kvguard.engines.vllm import parse_vllm

PATH: Final = "/v1/models"
EVERY_SECONDS: Final = 60.0


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_decoder = msgspec.json.Decoder(_Models)


def parse_models(body: bytes) -> ServerFacts:
    """Names, adapters and the longest context. Raises ValueError (msgspec's are) for anything else."""
    models = _decoder.decode(body).data
    lengths = [length for model in models if (length := model.max_model_len) is not None and length > 0]
    return ServerFacts(
        models=frozenset(model.id for model in models),
        parents={model.id: model.parent for model in models if model.parent},
        context_tokens=max(lengths, default=None),
    )


def vllm_reading(*, kv_usage_metric: str | None = None) -> Reading:
    """How vLLM tells: its metrics say how large its cache is. `kv_usage_metric` replaces the known gauge names."""

    def usage(page: str, _: ServerFacts) -> UsageSample:
        return parse_vllm(page, kv_usage_metric=kv_usage_metric)

    return Reading(facts_path=PATH, facts_seconds=EVERY_SECONDS, facts=parse_models, usage=usage)
