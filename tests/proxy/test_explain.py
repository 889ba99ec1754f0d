"""What the explanation says is what then happens, and asking changes nothing."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.blocks import PoolLayout
from kvguard.admission.capacity import CapacityPolicy
from kvguard.admission.condition import EngineState
from kvguard.admission.decision import BlindPolicy
from kvguard.admission.occupancy import Signal
from kvguard.admission.policies import NORMAL, PolicyRow, PolicyTable, PriorityClass
from kvguard.admission.policy import DegradePolicy, TrimMode
from kvguard.admission.population import Population
from kvguard.admission.shares import TenantPolicy, TenantTable
from kvguard.admission.tiers import TierPolicy, TierRule
from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.errors import InvalidRequest
from kvguard.pool.backend import Backend
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.routes import VLLM
from kvguard.proxy.candidate import counted, marked
from kvguard.proxy.controller import Admission, Controller
from kvguard.proxy.explain import UnknownRoute
from kvguard.proxy.governance import Governance
from kvguard.proxy.headers import OPT_OUT
from kvguard.proxy.identity import IdentityPolicy
from tests.admission.build import demand, demands, sample
from tests.kit.dialects import DIALECTS, RESPONSES
from tests.kit.explaining import (
    COUNTER,
    DEGRADE,
    NOW,
    POLICY,
    SMALL,
    backend_at,
    explained,
    explainer_of,
    in_condition,
)
from tests.kit.guard import CHAT, COMPLETIONS, guarding
from tests.kit.properties import deterministic
from tests.kit.stub import Stub, exposition, refusing_stub, running_stub

SECRET = "correct-horse-battery"


@st.composite
def bodies(draw: st.DrawFn) -> dict:
    """Requests of both routes, small enough to matter to a hundred blocks."""
    fields: dict[str, Any] = {"model": draw(st.sampled_from(("m", "thinker", "other")))}
    if draw(st.booleans()):
        fields["messages"] = [{"role": "user", "content": "x" * draw(st.integers(0, 900))}]
    else:
        lengths = draw(st.lists(st.integers(1, 700), min_size=1, max_size=2))
        fields["prompt"] = [[1] * length for length in lengths]
    optional = {
        "max_tokens": st.integers(1, 1200),
        "n": st.integers(1, 3),
        "use_beam_search": st.booleans(),
        "min_tokens": st.integers(0, 100),
        "tools": st.just([{}]),
        "ignore_eos": st.booleans(),
    }
    for name, values in optional.items():
        if draw(st.booleans()):
            fields[name] = draw(values)
    return fields


@st.composite
def pools(draw: st.DrawFn) -> list[Backend]:
    """One or two backends at any load, some of them blind, with requests of their own."""
    built = []
    for number in range(draw(st.integers(1, 2))):
        ratio = draw(st.none() | st.floats(0, 1))
        models = draw(st.sampled_from(((), ("m",), ("m", "thinker"))))
        age = draw(st.sampled_from((0.0, 0.0, 0.0, 30.0)))
        waiting = draw(st.sampled_from((0, 0, 3)))
        backend = backend_at(f"b{number}", ratio, models=models, age=age, waiting=waiting)
        for held in draw(st.lists(demands(), max_size=2)):
            backend.reserve(held, NOW)
        if draw(st.integers(0, 5)) == 0:
            for _ in range(3):
                backend.occupancy.miss(reached=False)
        if draw(st.booleans()):
            backend.retier(TierPolicy(), NOW)
        in_condition(backend, draw(st.sampled_from(list(EngineState))), due=draw(st.booleans()))
        built.append(backend)
    return built


def state_of(controller: Controller) -> object:
    """Everything a decision may change."""
    backends = [
        (
            b.tier,
            b.ledger.held_blocks,
            b.ledger.profile.peak,
            b.ledger.live,
            b.ledger.violations,
            b.refused_blocks.value(NOW),
            len(b.seen),
        )
        for b in controller.backends
    ]
    probes = [(b.watch.probes.total(), b.watch._probe_from) for b in controller.backends]
    return backends, probes, [b.appointments.next(earliest=0.0, latest=1e9) for b in controller.backends]


@deterministic
@given(
    pool=pools(),
    fields=bodies(),
    opt_out=st.booleans(),
    blind=st.sampled_from(list(BlindPolicy)),
    collapse=st.booleans(),
    draining=st.sampled_from((False, False, False, True)),
)
def test_what_is_explained_is_what_the_controller_then_does(
    pool: list[Backend], fields: dict, opt_out: bool, blind: BlindPolicy, collapse: bool, draining: bool
) -> None:
    """Same verdict, backend, tier, reason, changes and `Retry-After`; and asking twice changes nothing."""
    explainer, controller = explainer_of(*pool, blind=blind, degrade=replace(DEGRADE, collapse_n=collapse))
    controller.draining = draining
    before = state_of(controller)
    said = explained(explainer, fields, opt_out=opt_out)
    assert explained(explainer, fields, opt_out=opt_out) == said
    assert state_of(controller) == before

    route = VLLM.generating[said["route"]]
    headers = [(OPT_OUT, b"none")] if opt_out else []
    request = marked(route.parse(json.dumps(fields).encode()), route, headers, controller.policy.degrade)
    candidate = asyncio.run(counted(request, COUNTER, POLICY.candidates, NORMAL, []))
    outcome = controller.refuse_early(NOW) or controller.admit(
        controller.call(candidate.demand_on, model=request.model), NOW
    )

    if isinstance(outcome, Admission):
        changes = rewrite(request, outcome.decision.degradation).changes
        assert (said["decision"], said["reason"]) == ("degrade" if changes else "admit", None)
        assert (said["backend"], said["changes"]) == (outcome.backend.name, list(changes))
        assert said["tier"] == outcome.decision.tier
        (report,) = [report for report in said["backends"] if report["chosen"]]
        assert min(report["level"], 2) == outcome.decision.tier
        assert report["admitted"]["output_cap"] == outcome.decision.demand.output_cap
    else:
        assert (said["decision"], said["reason"]) == ("refuse", outcome.reason.value)
        assert (said["backend"] or "", said["tier"]) == (outcome.backend, outcome.tier)
        assert (said["retry_after_seconds"] is None) == (outcome.retry_after_seconds is None)
        if outcome.retry_after_seconds is not None:
            least, most = said["retry_after_seconds"]
            assert least - 0.05 <= outcome.retry_after_seconds <= most + 0.05
    assert all(report["why"] for report in said["backends"])
    assert said["why"]


def test_sizes_and_room_are_in_the_engines_units() -> None:
    """Prompts, sequences, caps, blocks, bytes, capacity, headroom and ratios, without and with the request."""

    def layout(block_size: int) -> PoolLayout:
        return PoolLayout(rule=PoolLayout.plain(block_size).rule, block_bytes=1000)

    backend = backend_at("b", 0.5, capacity=CapacityPolicy(layout_of=layout))
    explainer, _ = explainer_of(backend)
    said = explained(explainer, {"prompt": [[1] * 16, [1] * 20], "n": 2, "max_tokens": 32})
    (report,) = said["backends"]
    assert report["tokens"] == {"prompts": [16, 20], "prompt_sum": 36, "slack": 0, "source": "ids", "estimated": False}
    assert report["sequences"] == {"prompts": 2, "copies": 2, "beams": False, "total": 4}
    output = {"asked": 32, "cap": 32, "expected": 32, "forecast": 32, "forecast_source": "cap"}
    assert report["output"] == output
    assert report["footprint_tokens"] == 2 * 36 + 4 * 32
    assert report["blocks"] == {"prompt": 6, "prefill_extra": 0, "reserved": 14}
    assert report["bytes"] == {"prompt": 6000, "prefill_extra": 0, "reserved": 14000}
    assert report["capacity"] == {"blocks": 100, "tokens": 1600, "bytes": 100_000}
    assert report["headroom"] == {"below_reject_blocks": 45, "free_blocks": 50}
    assert report["ratios"]["without"] == {"observed": 0.5, "projected": 0.5, "reserved": 0.5, "peak": 0.5}
    assert report["ratios"]["with"] == {"observed": 0.5, "projected": 0.56, "reserved": 0.64, "peak": 0.64}
    assert (report["base_tier"], report["level"], report["telemetry"]) == (0, 0, "fresh")


def test_what_is_shared_is_told() -> None:
    """Blocks that a request with the same beginning holds, of all that the prompt takes."""
    backend = backend_at("b", None)
    backend.occupancy.observe(sample(0.0, prefix_caching=True), asked_at=NOW)
    explainer, controller = explainer_of(backend)
    body = {"prompt": [12345] * 400, "max_tokens": 16}
    route = VLLM.generating[COMPLETIONS]
    request = marked(route.parse(json.dumps(body).encode()), route, [], DEGRADE)
    (before,) = explained(explainer, body)["backends"]
    candidate = asyncio.run(counted(request, COUNTER, POLICY.candidates, NORMAL, []))
    controller.admit(controller.call(candidate.demand_on), NOW)
    (after,) = explained(explainer, body)["backends"]
    assert [(each["shared_blocks"], each["blocks"]["prompt"]) for each in (before, after)] == [(0, 25), (18, 25)]
    assert after["ratios"]["with"]["projected"] == pytest.approx(0.32)


def test_the_condition_of_every_engine_is_named() -> None:
    """As it is known at that moment."""
    stalled = in_condition(backend_at("a", 0.1), EngineState.STALLED)
    explainer, _ = explainer_of(stalled, in_condition(backend_at("b", 0.1, age=30.0), EngineState.STALLED))
    assert [each["condition"] for each in explained(explainer, SMALL)["backends"]] == ["stalled", "unknown"]


def test_without_a_capacity_there_are_tokens_but_no_blocks() -> None:
    """Unknown is null, never 0."""
    explainer, _ = explainer_of(backend_at("b", None))
    (report,) = explained(explainer, SMALL)["backends"]
    for name in ("blocks", "bytes", "capacity", "headroom", "ratios", "admitted"):
        assert report[name] is None
    assert report["tokens"]["prompt_sum"] == 16


def test_the_route_is_guessed_from_the_body_or_named() -> None:
    """Messages make a chat and input a response; a path that is no route is refused."""
    explainer, _ = explainer_of(backend_at("b", 0.1))
    assert explained(explainer, {"input": "x"})["route"] == RESPONSES
    for dialect in DIALECTS:
        said = explained(explainer, dialect.body(), path=dialect.route)
        assert (said["route"], said["decision"]) == (dialect.route, "admit")
    assert explained(explainer, {"messages": []})["route"] == CHAT
    assert explained(explainer, SMALL)["route"] == COMPLETIONS
    with pytest.raises(InvalidRequest):
        explained(explainer, SMALL, path=CHAT)
    with pytest.raises(UnknownRoute):
        explained(explainer, SMALL, path="/nowhere")


def test_a_backend_that_is_not_asked_says_why() -> None:
    """One does not serve the model, another cannot be reached; sizes are given all the same."""
    explainer, _ = explainer_of(backend_at("a", 0.1, models=("m",)), backend_at("b", 0.1, models=("other",)))
    said = explained(explainer, {**SMALL, "model": "m"})
    assert [report["chosen"] for report in said["backends"]] == [True, False]
    assert said["backends"][1]["decision"] == "not_asked"
    assert said["backends"][1]["why"] == ["not asked, because it does not list this model; it lists other"]
    assert said["backends"][1]["blocks"]["prompt"] == 1
    gone = backend_at("a", 0.1)
    for _ in range(3):
        gone.occupancy.miss(reached=False)
    explainer, _ = explainer_of(gone, backend_at("b", 0.1))
    assert explained(explainer, SMALL)["backends"][0]["why"] == [
        "not asked, because the backend cannot be reached (3 failures in a row) and another backend answers"
    ]


def test_a_model_nobody_lists_is_asked_of_all() -> None:
    """The engine is the one to say 404."""
    explainer, _ = explainer_of(backend_at("a", 0.1, models=("m",)))
    (report,) = explained(explainer, {**SMALL, "model": "nope"})["backends"]
    assert report["why"][0] == "no backend lists this model, so each is asked as if it did; the engine may say 404"


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}])
def test_a_request_that_names_no_model_is_served(model: dict[str, object]) -> None:
    """The engine takes its own, so nothing is said of a 404."""
    explainer, _ = explainer_of(backend_at("a", 0.1, models=("m", "served-too")))
    (report,) = explained(explainer, {**SMALL, **model})["backends"]
    assert report["decision"] == "admit"
    assert not any("404" in line for line in report["why"])


def test_an_opt_out_that_is_not_honoured_is_noted() -> None:
    """The header means nothing unless the operator allows it."""
    explainer, _ = explainer_of(backend_at("b", 0.75), degrade=replace(DEGRADE, allow_opt_out=False))
    said = explained(explainer, SMALL, opt_out=True)
    assert said["notes"] == ["x-kvguard-degrade: none is ignored, because degrade.allow_opt_out is off"]
    assert said["decision"] == "degrade"


@pytest.mark.anyio
async def test_the_admin_port_explains_and_forwards_nothing() -> None:
    """A live request's fate in JSON; the backend, the ledger and the metrics never hear of it."""
    async with running_stub(Stub(page=exposition(0.75))) as stub, guarding(stub) as guard:
        body = {"model": "tiny", "prompt": SECRET, "max_tokens": 1024}
        counted_before = guard.metric("kvguard_token_counts_total", source="engine")
        answer = await guard.admin.post("/debug/explain", json=body)
        assert answer.status_code == 200
        said = answer.json()
        assert (said["decision"], said["backend"]) == ("degrade", "b0")
        served = await guard.complete(SECRET, max_tokens=1024)
        assert served.headers["x-kvguard-degraded"] == ";".join(said["changes"])
        assert len(stub.hits) == 1
        assert guard.metric("kvguard_token_counts_total", source="engine") == (counted_before or 0) + 1
        assert SECRET not in answer.text + guard.log_stream.getvalue()


@pytest.mark.anyio
async def test_errors_of_the_admin_port_are_the_apis_own() -> None:
    """Invalid is 400 with the parser's message, too large 413, an unknown route 404; every one is JSON."""
    async with running_stub() as stub, guarding(stub, limits={"max_body_bytes": 200}) as guard:
        post = guard.admin.post
        invalid = await post("/debug/explain", json={"prompt": "hi", "max_tokens": "many", "user": SECRET})
        assert invalid.status_code == 400
        assert invalid.json()["error"] == {
            "message": "Invalid request: 'max_tokens' must be an integer.",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": "invalid_request",
        }
        large = await post("/debug/explain", json={"prompt": "x" * 300})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
        nowhere = await post("/debug/explain", params={"route": "/nowhere"}, json={"prompt": "hi"})
        assert (nowhere.status_code, nowhere.json()["error"]["param"]) == (404, "route")
        assert SECRET not in guard.log_stream.getvalue()


@pytest.mark.anyio
async def test_a_fault_of_ours_shows_nothing_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 500 in the API's shape, and the type of the error in the log."""

    def broken(self: object, *arguments: object, **named: object) -> None:
        raise ValueError(SECRET)

    async with running_stub() as stub, guarding(stub) as guard:
        monkeypatch.setattr(Controller, "choose", broken)
        answer = await guard.admin.post("/debug/explain", json={"prompt": SECRET})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert guard.logs[-1]["event"] == "fault"
        assert SECRET not in answer.text + guard.log_stream.getvalue()


@pytest.mark.anyio
async def test_a_draining_kvguard_and_one_without_a_backend_still_explain() -> None:
    """Both refuse everybody, and the explanation says so with 200."""
    async with running_stub() as stub, guarding(stub) as guard:
        guard.service.controller.draining = True
        said = (await guard.admin.post("/debug/explain", json=SMALL)).json()
        assert (said["decision"], said["reason"], said["status"], said["backend"]) == ("refuse", "draining", 503, None)
        assert said["why"] == ["refused (draining), because kvguard is shutting down: no backend is asked"]
    with refusing_stub() as stub:
        async with guarding(stub) as guard:
            said = (await guard.admin.post("/debug/explain", json=SMALL)).json()
            assert (said["reason"], said["status"]) == ("backend_unreachable", 502)


@pytest.mark.anyio
async def test_thresholds_out_of_reach_are_said_at_the_start_and_exported() -> None:
    """A thousand blocks and four sequences of 2048 tokens: the cache never fills half."""
    page = exposition(0.0, blocks=1024).replace('block_size="16"', 'block_size="16",kv_cache_size_tokens="33000"')
    async with running_stub(Stub(page=page)) as stub, guarding(stub, backend={"engine": {"max_num_seqs": 4}}) as guard:
        await guard.until(lambda: any(line["event"] == "block_rule" for line in guard.logs))
        (line,) = [line for line in guard.logs if line["event"] == "thresholds"]
        assert line["level"] == "warning"
        assert line["reject"] == (
            "unreachable: 4 sequences (max_num_seqs) of the full context of 2048 tokens hold 512 of 1024 blocks "
            "(0.500), below 0.95 (tiers.reject_at): the engine's queue fills before its cache does"
        )
        labels = {"backend": "b0", "tier": "trim", "state": "unreachable"}
        assert guard.metric("kvguard_threshold_state", **labels) == 1
        ratio = guard.metric("kvguard_block_rule_ratio", backend="b0")
        assert ratio == pytest.approx(2.01, abs=0.01)
        await guard.advance(5.0)
        assert len([line for line in guard.logs if line["event"] in ("thresholds", "block_rule")]) == 2


def test_a_prompt_beyond_the_context_is_said_to_be_refused_by_the_engine() -> None:
    """kvguard leaves that refusal to the engine, but the explanation does not hide it."""
    explainer, _ = explainer_of(backend_at("b", 0.0, context=100))
    told = "the prompt of 101 tokens is longer than the context of 100: the engine refuses it"
    assert explained(explainer, {"prompt": [1] * 101, "max_tokens": 1})["why"][0] == told
    assert told not in explained(explainer, {"prompt": [1] * 100, "max_tokens": 1})["why"]
    cut = {"prompt": [1] * 101, "max_tokens": 1, "truncate_prompt_tokens": 50}
    assert not [line for line in explained(explainer, cut)["why"] if "longer than the context" in line]


def test_who_asks_is_taken_into_account() -> None:
    """On the admin port identity headers are believed: class, tenant, share and shadow mode all show."""
    backend = backend_at("b", 0.60)
    backend.reserve(demand(160, cap=16), NOW, "lab")
    explainer, controller = explainer_of(backend)
    low = replace(controller.policy, tiers=TierPolicy(reject=TierRule(enter=0.5, signals=(Signal.PROJECTED,))))
    rows = (PolicyRow(by_class={"normal": controller.policy, "low": low, "vip": replace(low, exempt=True)}),)
    classes = (PriorityClass(), PriorityClass(name="low"), PriorityClass(name="vip"))
    controller.governance = Governance(
        table=PolicyTable(rows, classes),
        tenants=TenantTable(by_name={"lab": TenantPolicy(max_share=0.12)}),
        identity=IdentityPolicy(
            tenant_header=b"x-tenant", priority_header=b"x-priority", classes=frozenset({"normal", "low", "vip"})
        ),
    )
    controller.retier(NOW)

    def said(*headers: tuple[bytes, bytes]) -> Any:
        return asyncio.run(explainer.explain(json.dumps(SMALL).encode(), list(headers)))

    assert (said()["decision"], said()["tenant"], said()["priority"]) == ("degrade", "anonymous", "normal")
    refused = said((b"x-priority", b"low"))
    assert (refused["decision"], refused["reason"], refused["priority"]) == ("refuse", "saturated", "low")
    exempt = said((b"x-priority", b"vip"))
    assert exempt["backends"][0]["why"] == ["admitted unchanged, because its class is exempt (classes[].exempt)"]
    shared = said((b"x-tenant", b"lab"))
    assert (shared["reason"], shared["status"]) == ("tenant_share", 429)
    assert shared["backends"][0]["why"] == [
        "refused (tenant_share), because tenant lab holds 11 blocks, and with this request more than its 12 "
        "(tenants[].max_share 0.12 of 100)"
    ]
    controller.governance = replace(controller.governance, shadowed=frozenset({"b"}))
    assert said((b"x-priority", b"low"))["backends"][0]["why"][-1] == (
        "shadow mode: it passes unchanged, and this is only reported"
    )


@pytest.mark.parametrize(
    ("gauge", "words"),
    [
        (0.691, "the output cap stays, because TRIM has only just begun (degrade.mode proportional)"),
        (
            0.765,
            "the output cap is lowered from 160 to 120 (degrade.mode proportional: 50% of degrade.trim_factor 0.5, "
            "degrade.max_output_tokens 512, degrade.floor_tokens 64)",
        ),
    ],
)
def test_a_proportional_trim_says_how_far_it_goes(gauge: float, words: str) -> None:
    """By the load with the request, between the two thresholds."""
    explainer, _ = explainer_of(backend_at("b", gauge), degrade=DegradePolicy(mode=TrimMode.PROPORTIONAL))
    assert words in explained(explainer, SMALL)["backends"][0]["why"]


@pytest.mark.parametrize(
    ("learned", "counted", "forecast", "source"),
    [(40, 40, 20, "learned"), (0, 40, 8, "prior"), (29, 29, 160, "cap"), (29, 30, 8, "prior")],
)
def test_where_the_forecast_length_comes_from(learned: int, counted: int, forecast: int, source: str) -> None:
    """Answers like it where enough are known, else the engine's own histogram, else what the request asks."""
    backend = backend_at("b", 0.0)
    lengths = backend.occupancy.lengths
    page = EngineUsage(engine="0", generation_lengths=((7.0, 0.0), (8.0, float(counted))))
    lengths.observe_engine(UsageSample(engines=(page,)))
    for _ in range(learned):
        lengths.observe(20, Population(route=COMPLETIONS), cap=160)
    (report,) = explained(explainer_of(backend)[0], SMALL)["backends"]
    assert (report["output"]["forecast"], report["output"]["forecast_source"]) == (forecast, source)
