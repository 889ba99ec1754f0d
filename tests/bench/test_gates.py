"""The rivals' rules, each at its boundary and one step either side."""

import pytest

from bench.overload.gates import BudgetGate, ClairvoyantGate, Gate, SaturationGate
from bench.overload.workload import Arrival


def arrival(number: int = 0, *, prompt: int = 32, cap: int = 512, length: int = 32) -> Arrival:
    return Arrival(number=number, at=0.0, prompt="", prompt_tokens=prompt, cap=cap, length=length)


def test_no_gate_lets_everything_pass() -> None:
    """The bare engine's arm."""
    gate = Gate()
    assert all(gate.admit(arrival(n), 0.0) for n in range(1000))
    gate.progress(arrival(), 1)
    gate.ended(arrival(), 1.0)


@pytest.mark.parametrize(
    ("waiting", "used_ratio", "admits"),
    [
        (0, 0.0, True),
        (4, 0.0, True),
        (5, 0.0, False),
        (0, 0.79, True),
        (0, 0.80, False),
        (4, 0.79, True),  # the larger of both counts, not their sum
        (9, 0.1, False),
    ],
)
def test_a_saturation_gate_refuses_at_either_threshold(waiting: int, used_ratio: float, admits: bool) -> None:
    """max(queue / 5, usage / 0.8) below 1 passes."""
    gate = SaturationGate()
    gate.observe(waiting=waiting, used_ratio=used_ratio)
    assert gate.admit(arrival(), 0.0) is admits


def test_a_saturation_gate_refuses_until_it_has_seen_the_engine() -> None:
    """Unknown counts as saturated."""
    assert not SaturationGate().admit(arrival(), 0.0)


def test_a_saturation_gate_forgets_what_it_admitted() -> None:
    """Between two looks at the gauges everything passes, as with the rule it stands for."""
    gate = SaturationGate()
    gate.observe(waiting=0, used_ratio=0.5)
    assert all(gate.admit(arrival(n), 0.0) for n in range(100))


@pytest.mark.parametrize(("cap", "admits"), [(867, True), (868, True), (869, False)])
def test_a_budget_gate_fills_its_share_of_the_capacity_with_declared_caps(cap: int, admits: bool) -> None:
    """Prompts and caps up to 0.9 of the capacity pass, exactly that included."""
    assert BudgetGate(capacity_tokens=1000).admit(arrival(prompt=32, cap=cap), 0.0) is admits


def test_a_budget_gate_counts_what_is_in_flight_until_it_ends() -> None:
    """An ending makes room, a refusal takes none."""
    gate = BudgetGate(capacity_tokens=1000)
    assert gate.admit(arrival(0, cap=512), 0.0)
    assert not gate.admit(arrival(1, cap=512), 0.0)
    gate.progress(arrival(0, cap=512), 500)
    assert not gate.admit(arrival(2, cap=512), 0.0)
    gate.ended(arrival(0, cap=512), 1.0)
    assert gate.tokens_in_flight == 0
    assert gate.admit(arrival(3, cap=512), 1.0)


@pytest.mark.parametrize(("length", "admits"), [(32 * 17, True), (32 * 18, False), (32 * 100, False)])
def test_the_clairvoyant_gate_refuses_whose_peak_reaches_the_threshold(length: int, admits: bool) -> None:
    """One block of prompt and the blocks of the true length against 0.95 of 20 blocks; the cap does not matter."""
    gate = ClairvoyantGate(capacity_blocks=20, block_size=32)
    assert gate.admit(arrival(length=length, cap=4000), 0.0) is admits


def test_the_clairvoyant_gate_admits_a_long_answer_that_starts_to_grow_when_others_have_gone() -> None:
    """Blocks at their ends would come to 24 of 20; at no moment are that many held."""
    gate = ClairvoyantGate(capacity_blocks=20, block_size=32)
    assert gate.admit(arrival(0, prompt=32 * 7, length=32), 0.0)
    assert gate.admit(arrival(1, prompt=32, length=32 * 15), 0.0)


def test_the_clairvoyant_gate_follows_its_requests_to_their_ends() -> None:
    """What was produced is no longer to come, and nothing is left of a request that has ended."""
    gate = ClairvoyantGate(capacity_blocks=20, block_size=32)
    assert gate.admit(arrival(0, prompt=32, length=32 * 17), 0.0)
    assert not gate.admit(arrival(1, length=32 * 17), 0.0)
    gate.progress(arrival(0), 32 * 16)
    assert not gate.admit(arrival(2, length=32 * 2), 1.0)
    gate.ended(arrival(0), 2.0)
    assert gate.live == 0
    assert gate.admit(arrival(3), 2.0)
