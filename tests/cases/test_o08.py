"""O-08: TGI has no KV gauge; what its batch has reserved over its budget makes one."""

import json
from typing import Any

import pytest

from kvguard.errors import SettingsError
from kvguard.settings import Settings
from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, running_stub

pytestmark = pytest.mark.anyio

# 1600 tokens of which one is kept for health checks.
INFO = {"version": "2.2.0", "model_id": "m", "max_total_tokens": 1024, "max_batch_total_tokens": 1601}
PAGE = "tgi_batch_current_max_tokens 1200\ntgi_batch_current_size 4\ntgi_queue_size 0\ntgi_request_success 9\n"
FLAGS = {"tgi": {"attention": "flashinfer"}}


async def generate(guard: Guard) -> Any:
    body = {"inputs": "hi", "parameters": {"max_new_tokens": 120}}
    return await guard.client.post("/generate", json=body)


async def test_a_known_budget_gives_a_usage_and_a_trimmed_answer() -> None:
    """1200 of 1600 tokens are 0.75: a request for 120 new tokens is sent on with 64."""
    stub = Stub(info=INFO, page=PAGE)
    async with running_stub(stub), guarding(stub, backend=FLAGS) as guard:
        assert guard.usage("observed", engine="0") == 0.75
        answer = await generate(guard)
    assert answer.headers["x-kvguard-degraded"] == "max_new_tokens=120->64"
    assert json.loads(stub.hits[0].body)["parameters"] == {"max_new_tokens": 64}


@pytest.mark.parametrize(("said", "usage"), [(2401, 0.5), (None, 0.75)])
async def test_the_operator_may_say_another_budget(said: int | None, usage: float) -> None:
    """His word goes over the server's."""
    stub = Stub(info=INFO, page=PAGE)
    flags = {"tgi": {**FLAGS["tgi"], "max_batch_total_tokens": said}}
    async with running_stub(stub), guarding(stub, backend=flags) as guard:
        assert guard.usage("observed", engine="0") == usage


async def test_a_budget_nobody_knows_is_a_stated_lower_bound() -> None:
    """The longest request the server takes, with a warning; never a usage of 0."""
    stub = Stub(info={**INFO, "version": "3.3.7", "max_batch_total_tokens": None}, page=PAGE)
    async with running_stub(stub), guarding(stub) as guard:
        assert guard.usage("observed", engine="0") == pytest.approx(1200 / 1023)
        [warning] = [line for line in guard.logs if line["event"] == "capacity"]
        assert warning["at_least_tokens"] == 1024


async def test_a_server_that_tells_nothing_is_not_empty() -> None:
    """Without `/info` nothing is admitted as if there were room."""
    stub = Stub(info={}, page=PAGE)
    async with running_stub(stub), guarding(stub) as guard:
        assert (guard.telemetry(), guard.usage("observed")) == ("missing", None)
        assert (await generate(guard)).headers["x-kvguard-reason"] == "no_metrics"


def test_a_broken_estimate_is_an_error_at_the_start() -> None:
    """Settings that cannot be are refused."""
    with pytest.raises(SettingsError):
        Settings(backends=[{"url": "tgi+http://h:1", "tgi": {"gpu_memory": "much"}}])
