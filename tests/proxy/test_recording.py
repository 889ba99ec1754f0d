"""What is recorded of decisions on their way: for whom, nothing a client says, and that it replays the same."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvguard.admission.decision import AdmissionPolicy
from kvguard.admission.footprint import Demand
from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.reasons import RejectReason
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.tiers import Tier, TierPolicy
from kvguard.pool.backend import Backend, new_backend
from kvguard.proxy.controller import Controller
from kvguard.replay import Replay, Replayer
from kvguard.telemetry.decision_log import DecisionLine
from tests.admission.build import demand, marks, sample
from tests.kit.guard import guarding, settings_for
from tests.kit.stub import Stub, exposition, running_stub

ASKED = demand(16, cap=16)
SECRET = "canary"


def backend(gauge: float, **fields: Any) -> Backend:
    made = new_backend("b", "http://b", OccupancyPolicy(), LengthPolicy())
    made.observe(sample(gauge), asked_at=0.0)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def controller(of: Backend, *, recording: bool = True) -> Controller:
    policy = AdmissionPolicy(tiers=TierPolicy(), degrade=DegradePolicy())
    made = Controller((of,), policy, RetryPolicy(), rng=random.Random(1), on_tier_change=lambda change: None)
    made.recording = recording
    return made


def asked_of(_: Backend) -> Demand:
    return ASKED


@pytest.mark.parametrize(("model", "kept"), [("m", "m"), ("lora", "lora"), (SECRET, ""), (None, "")])
def test_only_a_listed_model_is_named(model: str | None, kept: str) -> None:
    """Adapters by their own name, because settings may be for them; what no backend lists is a client's word."""
    of = backend(0.5, models=frozenset({"m", "lora"}), parents={"lora": "m"})
    made = controller(of)
    outcome = made.admit(made.call(asked_of, model=model), 0.0)
    assert (outcome.record.model, outcome.record.demand, outcome.record.priority) == (kept, ASKED, "normal")


def test_how_a_prompt_begins_is_not_told() -> None:
    """Marks tell who said the same; what is kept is how many blocks that is."""
    of = backend(0.5)
    beginning = demand(160, cap=16, prefix=marks(0, 0))
    of.reserve(beginning, 0.0)
    made = controller(of)
    record = made.admit(made.call(lambda _: beginning), 0.0).record
    assert (record.demand, record.standing.match.matched) == (demand(160, cap=16), 8)


def test_it_is_the_moment_before_the_reservation() -> None:
    """The request itself is not in what it was decided on."""
    made = controller(backend(0.5))
    outcome = made.admit(made.call(asked_of), 0.0)
    assert (outcome.record.standing.held_blocks, outcome.record.standing.idle) == (0, False)


def test_refusals_are_recorded_too() -> None:
    """Of the body unread without a demand, and with the reason of those whose turn does not come."""
    full = controller(backend(0.97))
    early, refused = full.refuse_early(0.0), full.admit(full.call(asked_of), 0.0)
    assert (early.record.demand, early.record.verdict.reason) == (None, RejectReason.SATURATED)
    assert early.record.in_force == refused.record.in_force
    assert (refused.record.demand, refused.record.in_force[0].tier) == (ASKED, Tier.REJECT)
    away = full.turn_away(full.call(asked_of), 0.0, RejectReason.QUEUE_TIMEOUT).record
    assert (away.turned_away, away.verdict) == (RejectReason.QUEUE_TIMEOUT, refused.record.verdict)
    full.draining = True
    assert full.refuse_early(0.0).record is None


def test_without_a_log_nothing_is_recorded() -> None:
    """Decisions then cost what they did."""
    plain = controller(backend(0.97), recording=False)
    outcomes = [
        plain.refuse_early(0.0),
        plain.admit(plain.call(asked_of), 0.0),
        plain.turn_away(plain.call(asked_of), 0.0, RejectReason.SATURATED),
    ]
    assert [outcome.record for outcome in outcomes] == [None, None, None]


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["enforce", "shadow"])
async def test_a_running_kvguards_log_replays_as_it_was_and_tells_nothing(tmp_path: Path, mode: str) -> None:
    """From empty to full, on two backends, each is decided again alike; no prompt, key, header or tenant is in it."""
    path = tmp_path / "decisions.jsonl"
    identity = {"tenant_header": "x-tenant-id", "trusted_proxies": ["127.0.0.1"]}
    sections: dict[str, Any] = {"mode": mode, "identity": identity, "decision_log": {"path": path}}
    headers = {"authorization": f"Bearer sk-{SECRET}", "x-tenant-id": SECRET, "x-other": SECRET}
    async with running_stub() as stub, running_stub() as other, guarding(stub, other, **sections) as guard:
        for gauge in (0.0, 0.72, 0.86, 0.94, 0.97):
            stub.page, other.page = exposition(gauge), exposition(gauge + 0.01, blocks=80)
            await guard.scrape()
            for cap in (1, 400):
                fields = {"max_tokens": cap, "stop": SECRET, "user": SECRET, "headers": headers}
                await guard.complete(SECRET, **fields)
                await guard.chat(SECRET, **fields)
        decided = sum(line["event"] == "decision" for line in guard.logs)
        assert guard.metric("kvguard_decision_log_dropped_total") == 0
    text = path.read_bytes()
    assert SECRET.encode() not in text
    lines = [msgspec.json.decode(line, type=DecisionLine) for line in text.splitlines()]
    assert len(lines) == decided == 20
    assert {line.decision.shadow for line in lines} == {mode == "shadow"}
    assert {line.route for line in lines} == {"/v1/completions", "/v1/chat/completions"}
    replay = Replay()
    replay.run(text.splitlines(), Replayer(settings_for(Stub(port=1), **sections)))
    assert (replay.decisions, replay.differing) == (20, 0)
