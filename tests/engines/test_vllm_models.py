"""vLLM's list of models."""

import pytest

from kvguard.engines.reading import ModelEntry, ServerFacts
from kvguard.engines.vllm_models import MAX_LISTING_BYTES, parse_models, vllm_reading


def test_models_adapters_and_the_longest_context() -> None:
    """A length that is none is not taken for one; an entry is kept as it is written, unknown fields included."""
    model, adapter = (
        b'{"id" : "m", "max_model_len": 512, "new": [1.50]}',
        b'{"id": "lora","parent":"m","max_model_len":0}',
    )
    assert parse_models(b'{"data": [ %b , %b ]}' % (model, adapter)) == ServerFacts(
        models=frozenset({"m", "lora"}),
        parents={"lora": "m"},
        listing={"m": ModelEntry(body=model, context_tokens=512), "lora": ModelEntry(body=adapter)},
        context_tokens=512,
    )
    assert parse_models(b'{"data": []}') == ServerFacts()


def test_a_server_of_several_names() -> None:
    """Each is a model with the one context there is; an adapter belongs to the first; a name counts once."""
    body = b"""{"object": "list", "data": [
        {"id": "a", "root": "models/tiny", "parent": null, "max_model_len": 2048},
        {"id": "b", "root": "models/tiny", "parent": null, "max_model_len": 2048},
        {"id": "lora", "root": "loras/1", "parent": "a", "max_model_len": null},
        {"id": "b", "root": "other", "parent": null, "max_model_len": 2048}]}"""
    facts = parse_models(body)
    assert (facts.models, facts.parents, facts.context_tokens) == ({"a", "b", "lora"}, {"lora": "a"}, 2048)
    assert [entry.context_tokens for entry in facts.listing.values()] == [2048, 2048, None]
    assert b"models/tiny" in facts.listing["b"].body


def test_a_list_without_end_is_not_kept() -> None:
    """Every name is known, and entries are kept up to the bound."""
    entry = b'{"id": "%d", "root": "' + b"x" * (MAX_LISTING_BYTES // 4) + b'"}'
    facts = parse_models(b'{"data": [%b]}' % b",".join(entry % number for number in range(5)))
    assert facts.models == {"0", "1", "2", "3", "4"}
    assert [*facts.listing] == ["0", "1", "2"]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"data": [{}]}', b'{"data": [{"id": 1}]}', b"\xff"])
def test_anything_else_is_no_list(body: bytes) -> None:
    """It raises ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011  msgspec's message is not ours
        parse_models(body)


def test_usage_needs_no_facts() -> None:
    """The page says everything; another gauge may be named."""
    page = 'vllm:cache_config_info{num_gpu_blocks="11",block_size="16"} 1\nmine 0.5\n'
    [engine] = vllm_reading(kv_usage_metric="mine").usage(page, ServerFacts()).engines
    assert (engine.capacity_blocks, engine.used_ratio) == (10, 0.5)
