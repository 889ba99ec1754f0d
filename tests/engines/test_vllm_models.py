"""vLLM's list of models."""

import pytest

from kvguard.engines.reading import ServerFacts
from kvguard.engines.vllm_models import parse_models, vllm_reading


def test_models_adapters_and_the_longest_context() -> None:
    """A length that is none is not taken for one."""
    body = b'{"data": [{"id": "m", "max_model_len": 512}, {"id": "lora", "parent": "m", "max_model_len": 0}]}'
    assert parse_models(body) == ServerFacts(models=frozenset({"m", "lora"}), parents={"lora": "m"}, context_tokens=512)
    assert parse_models(b'{"data": []}') == ServerFacts()


@pytest.mark.parametrize("body", [b"", b"{}", b'{"data": [{}]}', b"\xff"])
def test_anything_else_is_no_list(body: bytes) -> None:
    """It raises ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011  msgspec's message is not ours
        parse_models(body)


def test_usage_needs_no_facts() -> None:
    """The page says everything; another gauge may be named."""
    page = 'vllm:cache_config_info{num_gpu_blocks="11",block_size="16"} 1\nmine 0.5\n'
    [engine] = vllm_reading(kv_usage_metric="mine").usage(page, ServerFacts()).engines
    assert (engine.capacity_blocks, engine.used_ratio) == (10, 0.5)
