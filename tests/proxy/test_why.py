"""The words name the number, the threshold and the setting that decided."""

from dataclasses import replace
from typing import Any

import pytest

from kvguard.admission.condition import EngineState, SignalPolicy
from kvguard.admission.decision import BlindPolicy
from kvguard.admission.occupancy import Signal
from kvguard.admission.tiers import Tier, TierPolicy, TierRule, TierState
from kvguard.pool.backend import Backend
from kvguard.proxy.why import choice
from tests.admission.build import demand, sample
from tests.kit.explaining import DEGRADE, NOW, SMALL, backend_at, explained, explainer_of, in_condition


def why(
    backend: Backend, *, opt_out: bool = False, fields: dict[str, Any] | None = None, **admission: Any
) -> list[str]:
    """The words for a prompt of 16 tokens and an answer of 160, or for `fields`."""
    explainer, _ = explainer_of(backend, **admission)
    return explained(explainer, {**SMALL, **(fields or {})}, opt_out=opt_out)["backends"][0]["why"]


def lowered(before: int, after: int) -> str:
    return (
        f"the output cap is lowered from {before} to {after} (degrade.trim_factor 0.5, degrade.max_output_tokens 512, "
        "degrade.floor_tokens 64)"
    )


FULL = 144  # with its prompt ten blocks


@pytest.mark.parametrize(
    ("ratio", "lines"),
    [
        (0.1, ["NORMAL, because projected 0.110 with this request is below 0.7 (tiers.trim_at)"]),
        (
            0.69,
            ["TRIM, because projected 0.700 with this request is at or above 0.7 (tiers.trim_at)", lowered(144, 72)],
        ),
        (
            0.84,
            [
                "RESTRICT, because projected 0.850 with this request is at or above 0.85 (tiers.restrict_at)",
                lowered(144, 72),
            ],
        ),
        (
            0.85,
            [
                "REJECT, because peak 0.950 with this request is at or above 0.95 (tiers.reject_at)",
                lowered(144, 72),
                "admitted, because peak 0.910 so degraded is below 0.95 (tiers.reject_at)",
            ],
        ),
        (
            0.895,
            [
                "REJECT, because peak 0.995 with this request is at or above 0.95 (tiers.reject_at)",
                "the output cap is lowered from 144 to 64, the most that stays below 0.95 (tiers.reject_at)",
                "admitted, because peak 0.945 so degraded is below 0.95 (tiers.reject_at)",
            ],
        ),
        (
            0.92,
            [
                "REJECT, because peak 1.020 with this request is at or above 0.95 (tiers.reject_at)",
                "refused (saturated), because peak 0.980 with this request as the tier degrades it is at or above 0.95 "
                "(tiers.reject_at), and peak 0.970 under the least cap of 64 tokens; 3 blocks must come free",
            ],
        ),
        (
            0.96,
            [
                "REJECT is in force, because projected 0.960 without this request is at or above 0.95 "
                "(tiers.reject_at)",
                "refused (saturated), because REJECT is in force; 9 blocks must come free",
            ],
        ),
    ],
)
def test_every_level_names_the_number_that_led_there(ratio: float, lines: list[str]) -> None:
    """Projected or peak, without the request when the tier is in force and with it when the request causes it."""
    assert why(backend_at("b", ratio), fields={"max_tokens": FULL}) == lines


def test_a_ratio_is_shown_in_as_many_digits_as_tell_it_from_the_threshold() -> None:
    """0.69996 is below 0.7, and so it reads."""
    assert why(backend_at("b", 0.68996))[0].startswith("NORMAL, because projected 0.69996 with this request is below")


def at_tier(tier: Tier, ratio: float, *, since: float = NOW) -> Backend:
    backend = backend_at("b", ratio)
    backend.tier = TierState(tier, since)
    return backend


def test_a_tier_that_is_left_reluctantly_says_what_holds_it() -> None:
    """The margin below the threshold, or the dwell time."""
    (first, *_) = why(at_tier(Tier.TRIM, 0.68), fields={"max_tokens": 1})
    assert first == (
        "TRIM is in force, because projected 0.680 is not yet below 0.68 (tiers.trim_at less tiers.exit_margin 0.02)"
    )
    tiers = TierPolicy(min_dwell_seconds=5.0)
    (first, *_) = why(at_tier(Tier.RESTRICT, 0.1, since=NOW - 2), tiers=tiers)
    assert first == ("RESTRICT is in force, because it was entered 2.0 s ago and is kept 5 s (tiers.min_dwell_seconds)")


def test_a_tier_looks_at_the_largest_of_its_signals() -> None:
    """The one that is largest is named."""
    tiers = TierPolicy(trim=TierRule(enter=0.7, signals=(Signal.OBSERVED, Signal.RESERVED)))
    assert why(backend_at("b", 0.65), tiers=tiers)[0] == (
        "TRIM, because reserved 0.760 with this request is at or above 0.7 (tiers.trim_at)"
    )


@pytest.mark.parametrize(
    ("fields", "opt_out", "words"),
    [
        ({"tools": [{}]}, False, "it has tools (degrade.trim_tools is off)"),
        (
            {"response_format": {"type": "json_object"}},
            False,
            "it asks for structured output (degrade.trim_structured_output is off)",
        ),
        ({"model": "thinker"}, False, "it reasons before it answers (degrade.reasoning_models, or `thinking`)"),
        ({}, True, "the client opted out (x-kvguard-degrade: none)"),
        ({"max_tokens": 50}, False, "it is 50, no more than the least it could be given"),
    ],
)
def test_a_cap_that_stays_says_why(fields: dict, opt_out: bool, words: str) -> None:
    """Traits, the opt-out, or that there is nothing to lower; a refusal says the same."""
    assert why(backend_at("b", 0.72), fields=fields, opt_out=opt_out)[1] == f"the output cap stays, because {words}"
    refused = why(backend_at("b", 0.945), fields=fields, opt_out=opt_out)[-1]
    assert f"and its cap cannot be lowered: {words}; " in refused


@pytest.mark.parametrize("opt_out", [False, True])
def test_what_generates_nothing_has_no_cap_to_lower(opt_out: bool) -> None:
    """Whoever asks, at every level and in a refusal."""
    words = "because nothing is generated"
    for ratio in (0.72, 0.90):
        explainer, _ = explainer_of(backend_at("b", ratio))
        answer = explained(explainer, {"input": [1] * 16}, opt_out=opt_out, path="/v1/embeddings")
        assert answer["backends"][0]["why"][1] == f"the output cap stays, {words}"
    explainer, _ = explainer_of(backend_at("b", 0.945))
    refused = explained(explainer, {"input": [1] * 16}, opt_out=opt_out, path="/v1/embeddings")["backends"][0]["why"]
    assert "its cap cannot be lowered: nothing is generated; " in refused[-1]


def test_a_chat_without_a_cap_is_lowered_from_no_limit() -> None:
    """Where the context is not known either, there is no cap to name."""
    backend = backend_at("b", 0.5, context=None)
    tiers = TierPolicy(trim=TierRule(enter=0.5, signals=(Signal.PROJECTED,)))
    lines = why(backend, tiers=tiers, fields={"messages": [], "prompt": None, "max_tokens": None})
    assert lines[1].startswith("the output cap is lowered from no limit to 512 (")


@pytest.mark.parametrize(
    ("fields", "opt_out", "collapse", "words"),
    [
        ({"use_beam_search": True}, False, False, "one sequence instead of 3 (RESTRICT)"),
        ({}, False, True, "one sequence instead of 3 (RESTRICT)"),
        ({}, False, False, "3 sequences stay, because clients index into them (degrade.collapse_n is off)"),
        ({}, True, False, "3 sequences stay, because the client opted out (x-kvguard-degrade: none)"),
    ],
)
def test_sequences_are_cut_or_say_why_not(fields: dict, opt_out: bool, collapse: bool, words: str) -> None:
    """Beams go, copies only when configured, and an opt-out keeps all."""
    lines = why(
        backend_at("b", 0.86),
        fields={"n": 3, "max_tokens": 8, **fields},
        opt_out=opt_out,
        degrade=replace(DEGRADE, collapse_n=collapse),
    )
    assert words in lines


def test_a_prompt_that_can_never_run_says_how_large_it_is() -> None:
    """Final when counted; a guess is only mentioned."""
    assert why(backend_at("b", 0.5), fields={"prompt": [1] * 1700}) == [
        "refused (too_large), because the longest prompt needs 107 blocks while it is computed, and an engine has "
        "100 in all: it can never run"
    ]
    assert why(backend_at("b", 0.0), fields={"prompt": "x" * 5100, "max_tokens": 128}) == [
        "the longest prompt needs 107 blocks while it is computed, and an engine has 100 in all, but its tokens are "
        "only estimated, which is no ground for a final refusal",
        "REJECT, because peak 1.150 with this request is at or above 0.95 (tiers.reject_at)",
        lowered(128, 64),
        "admitted although peak 1.110 with it is at or above 0.95 (tiers.reject_at): nothing runs there, and an idle "
        "engine takes whatever can run",
    ]


def test_an_idle_engine_takes_a_request_under_its_least_cap() -> None:
    """The floor is named when TRIM alone would have left more."""
    lines = why(backend_at("b", 0.0), fields={"prompt": [1] * 1500, "max_tokens": 400})
    assert "the output cap is lowered from 400 to 64, the least there is (degrade.floor_tokens)" in lines


def test_a_queue_in_the_engine_is_named() -> None:
    """The ratios count as the floor while requests wait for blocks."""
    lines = why(backend_at("b", 0.3, waiting=2))
    assert "requests wait in the engine for blocks, which counts as 0.85 (telemetry.queue_floor_ratio)" in lines


def test_a_stall_is_named_with_how_long_it_lasts() -> None:
    """For a refusal as for a probe, which is then decided on like any request."""
    stalled = in_condition(backend_at("b", 0.3), EngineState.STALLED, still_since=NOW - 42)
    because = "because there is work, and no token came of it for 42.0 s (signals.stall_seconds 30)"
    assert why(stalled) == [f"refused (backend_stalled), {because}"]
    probe = why(in_condition(stalled, EngineState.STALLED, due=True, still_since=NOW - 42))
    assert probe == [
        f"let through as a probe, one every 10 s (signals.probe_seconds), {because}",
        "NORMAL, because projected 0.310 with this request is below 0.7 (tiers.trim_at)",
    ]


def test_a_probe_of_an_exempt_class_says_both() -> None:
    """That it is a probe, and why it is not degraded."""
    stalled = in_condition(backend_at("b", 0.9), EngineState.STALLED, due=True, still_since=NOW - 42)
    probe, unchanged = why(stalled, exempt=True)
    assert probe.startswith("let through as a probe, one every 10 s (signals.probe_seconds), because")
    assert unchanged == "admitted unchanged, because its class is exempt (classes[].exempt)"


def test_sleep_is_named_for_what_it_is() -> None:
    """And nothing gets past it."""
    assert why(in_condition(backend_at("b", 0.3), EngineState.SLEEPING, due=True)) == [
        "refused (backend_stalled), because the engine is asleep (vllm:engine_sleep_state)"
    ]


def test_a_probe_of_a_doubted_gauge_says_what_is_doubted() -> None:
    """REJECT is in force, and this one passes all the same, under its least cap."""
    lines = why(in_condition(backend_at("b", 0.97), EngineState.CONTRADICTION, due=True))
    assert lines[0] == (
        "let through as a probe, one every 10 s (signals.probe_seconds), because the gauge says full, but nothing runs "
        "or waits there"
    )
    assert lines[-1] == "the output cap is lowered from 160 to 64, the least there is (degrade.floor_tokens)"


def test_preemptions_that_fill_the_cache_are_named() -> None:
    """With their rate, the limit and what they count as."""
    backend = backend_at("b", 0.3)
    backend.watch.policy = SignalPolicy(max_preemptions_per_second=0.5)
    in_condition(backend, EngineState.WORKING, preemptions_per_second=1.25, overcommitted=True)
    backend.occupancy.overcommitted = True
    assert (
        "the engine preempts 1.25 requests a second, more than 0.5 (signals.max_preemptions_per_second), which counts "
        "as 0.85 (telemetry.queue_floor_ratio)"
    ) in why(backend)


def test_a_prefill_backlog_is_named() -> None:
    """What waits, what this request adds, and the limit."""
    backend = backend_at("b", 0.3)
    backend.reserve(demand(90), NOW)
    assert why(backend, max_prefill_backlog_tokens=100)[-1] == (
        "refused (saturated), because 90 prompt tokens wait for their first token, with the 16 of this request more "
        "than 100 (signals.max_prefill_backlog_tokens)"
    )


def test_a_server_that_takes_in_no_more_is_named() -> None:
    """How many it takes in, how many it has, and how many would come; the cache has nothing to do with it."""
    backend = backend_at("b", 0.3)
    backend.occupancy.permits = 2
    backend.reserve(demand(90), NOW)
    assert why(backend)[-1].startswith("NORMAL")
    backend.reserve(demand(90), NOW)
    assert why(backend)[-1] == (
        "refused (saturated), because the server takes in 2 sequences and has 2: 1 of this request would be too many"
    )


STALE = "the gauge is 30.0 s old, more than 5 s (telemetry.stale_after_seconds)"
UNKNOWN = "and the capacity is not known: set backends[].capacity_blocks and block_size"


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (BlindPolicy.LEDGER, f"kvguard's own ledger decides alone, because {STALE}"),
        (BlindPolicy.OPEN, f"admitted unchanged, because {STALE} and telemetry.when_blind is open"),
        (BlindPolicy.CLOSED, f"refused (stale_metrics), because {STALE} and telemetry.when_blind is closed"),
    ],
)
def test_a_stale_gauge_says_how_old_it_is(policy: BlindPolicy, words: str) -> None:
    """Under each policy for the blind."""
    assert why(backend_at("b", 0.5, age=30.0), blind=policy)[0] == words


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            BlindPolicy.LEDGER,
            f"refused (no_metrics), because the backend answers without a KV gauge, {UNKNOWN}; "
            "telemetry.when_blind is ledger",
        ),
        (
            BlindPolicy.OPEN,
            "admitted unchanged, because the backend answers without a KV gauge and telemetry.when_blind is open",
        ),
        (
            BlindPolicy.CLOSED,
            "refused (no_metrics), because the backend answers without a KV gauge and telemetry.when_blind is closed",
        ),
    ],
)
def test_a_backend_without_a_gauge_says_so(policy: BlindPolicy, words: str) -> None:
    """Under each policy for the blind."""
    backend = backend_at("b", None)
    backend.occupancy.observe(sample(None, blocks=None), asked_at=NOW)
    assert why(backend, blind=policy) == [words]


@pytest.mark.parametrize("policy", [BlindPolicy.LEDGER, BlindPolicy.OPEN])
def test_a_gauge_without_a_capacity_says_what_to_set(policy: BlindPolicy) -> None:
    """The gauge is fresh, but a share of nothing."""
    backend = backend_at("b", None)
    backend.occupancy.observe(sample(0.5, blocks=None), asked_at=NOW)
    verdict = "refused (no_metrics)" if policy is BlindPolicy.LEDGER else "admitted unchanged"
    assert why(backend, blind=policy) == [
        f"{verdict}, because the gauge is fresh, {UNKNOWN}; telemetry.when_blind is {policy.value}"
    ]


def test_a_backend_that_cannot_be_reached_says_how_often_it_was_tried() -> None:
    """Alone it is asked all the same."""
    backend = backend_at("b", None)
    backend.occupancy.miss(reached=False)
    assert why(backend)[0].startswith(
        "refused (backend_unreachable), because the backend cannot be reached (1 failures in a row), "
    )


@pytest.mark.parametrize(
    ("preferred", "asked", "words"),
    [
        (0, 2, "where prompts go that begin alike, as long as that one gets no more than 0.1 fuller"),
        (1, 2, "to the one that gets the least full"),
        (1, 5, "to one that promised little of its blocks"),
    ],
)
def test_why_it_is_this_one_of_several(preferred: int, asked: int, words: str) -> None:
    """Where prompts begin alike, or the emptiest; of many backends only a few were looked at closely."""
    backends = [backend_at("a", 0.1), backend_at("b", 0.1)]
    assert words in choice(backends[0], backends[preferred], takers=2, asked=asked, margin=0.1)
