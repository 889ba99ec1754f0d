"""The lists of several backends as one."""

import json

import pytest

from kvguard.engines.vllm_models import parse_models
from kvguard.pool.backend import Backend
from kvguard.proxy.model_list import merged
from tests.kit.explaining import backend_at

M = {"id": "m", "max_model_len": 512, "owned_by": "vllm"}
N = {"id": "n", "max_model_len": 4096, "new": {"field": 1.5}}
LORA = {"id": "a-lora", "parent": "m", "max_model_len": None}


def listing(*entries: dict) -> Backend:
    backend = backend_at("b", 0.0)
    backend.introduce(parse_models(json.dumps({"data": entries}).encode()))
    return backend


@pytest.mark.parametrize(
    "lists", [[], [[]], [[M, LORA]], [[], []], [[M, LORA], [LORA, {**M, "created": 2}]], [[{"id": "x"}], [{"id": "x"}]]]
)
def test_backends_that_list_the_same_speak_for_themselves(lists: list[list[dict]]) -> None:
    """Names and contexts are compared, in any order."""
    assert merged([listing(*entries) for entries in lists]) is None


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([[M], [N]], [M, N]),
        ([[N], [M]], [M, N]),
        ([[M, LORA], [N]], [M, N, LORA]),
        ([[M], [M, LORA]], [M, LORA]),
        ([[], [M, LORA]], [M, LORA]),
        ([[M], [{**M, "max_model_len": 256}]], [{**M, "max_model_len": 256}]),
        ([[{**M, "max_model_len": 256}], [M]], [{**M, "max_model_len": 256}]),
        ([[{"id": "m"}], [M]], [M]),
        ([[N, {**M, "created": 1}], [{**M, "created": 2}]], [{**M, "created": 1}, N]),
    ],
)
def test_one_list_of_backends_that_differ(lists: list[list[dict]], expected: list[dict]) -> None:
    """Every model once in a fixed order, adapters last, as a backend wrote it: the one of the smallest context."""
    answer = merged([listing(*entries) for entries in lists])
    assert answer is not None
    assert json.loads(answer) == {"object": "list", "data": expected}


def test_an_entry_keeps_its_bytes() -> None:
    """Nothing is read and written again."""
    entry = b'{"id" : "m","x":1.50,\n"y":"\\u00e9"}'
    backend = backend_at("b", 0.0)
    backend.introduce(parse_models(b'{"data":[%b]}' % entry))
    assert merged([backend, listing(N)]) == b'{"object":"list","data":[%b,%b]}' % (entry, json.dumps(N).encode())
