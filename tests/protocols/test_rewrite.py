"""How a request is written back when it is degraded."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.policy import Degradation, DegradePolicy, SequenceCut, degrade
from kvguard.admission.release import Release
from kvguard.admission.tiers import Tier
from kvguard.protocols import openai_chat, openai_completions, tgi_chat, tgi_completions, tgi_generate, tgi_vertex
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.rewrite import rewrite
from tests.kit.properties import deterministic

NONE, BEAMS, ALL = SequenceCut


def completion(fields: str = "") -> InferenceRequest:
    return openai_completions.parse(b'{"prompt":"hi"' + (f",{fields}" if fields else "").encode() + b"}")


def chat(fields: str = "") -> InferenceRequest:
    return openai_chat.parse(b'{"messages":[]' + (f",{fields}" if fields else "").encode() + b"}")


@pytest.mark.parametrize(
    ("request_", "degradation", "changes", "written"),
    [
        (completion('"max_tokens":1024'), Degradation(output_cap=512), ["max_tokens=1024->512"], {"max_tokens": 512}),
        (completion('"max_tokens":"1024"'), Degradation(output_cap=512), ["max_tokens=1024->512"], {"max_tokens": 512}),
        (completion('"max_tokens":513.0'), Degradation(output_cap=512), ["max_tokens=513->512"], {"max_tokens": 512}),
        (completion('"max_tokens":512'), Degradation(output_cap=512), [], {}),
        (completion('"max_tokens":100'), Degradation(output_cap=512), [], {}),
        (completion(), Degradation(output_cap=8), ["max_tokens=unset->8"], {"max_tokens": 8}),
        (completion('"max_tokens":null'), Degradation(output_cap=8), ["max_tokens=unset->8"], {"max_tokens": 8}),
        # Chat: every cap that is there, and the name every release knows where there is none.
        (chat(), Degradation(output_cap=512), ["max_tokens=unset->512"], {"max_tokens": 512}),
        (
            chat('"max_completion_tokens":1024'),
            Degradation(output_cap=512),
            ["max_completion_tokens=1024->512"],
            {"max_completion_tokens": 512},
        ),
        (
            chat('"max_tokens":2048,"max_completion_tokens":1024'),
            Degradation(output_cap=512),
            ["max_completion_tokens=1024->512", "max_tokens=2048->512"],
            {"max_completion_tokens": 512, "max_tokens": 512},
        ),
        (
            chat('"max_tokens":256,"max_completion_tokens":1024'),
            Degradation(output_cap=512),
            ["max_completion_tokens=1024->512"],
            {"max_completion_tokens": 512},
        ),
        # Beams are cut, copies only when told to.
        (
            completion('"use_beam_search":true,"n":4,"temperature":0'),
            Degradation(cut=BEAMS),
            ["use_beam_search=true->false", "n=4->1"],
            {"use_beam_search": False, "n": 1},
        ),
        # A beam search ignores a least length that sampling would be refused for.
        (
            completion('"use_beam_search":true,"n":4,"min_tokens":9,"max_tokens":8'),
            Degradation(cut=BEAMS),
            ["use_beam_search=true->false", "min_tokens=9->8", "n=4->1"],
            {"use_beam_search": False, "min_tokens": 8, "n": 1},
        ),
        (
            completion('"use_beam_search":true,"n":4,"min_tokens":17'),
            Degradation(cut=BEAMS),
            ["use_beam_search=true->false", "min_tokens=17->16", "n=4->1"],
            {"use_beam_search": False, "min_tokens": 16, "n": 1},
        ),
        (
            chat('"use_beam_search":true,"n":4,"min_tokens":9'),
            Degradation(cut=BEAMS),
            ["use_beam_search=true->false", "n=4->1"],
            {"use_beam_search": False, "min_tokens": 9, "n": 1},
        ),
        (completion('"n":4'), Degradation(cut=NONE), [], {}),
        (completion('"n":4'), Degradation(cut=BEAMS), [], {}),
        (completion('"n":4'), Degradation(cut=ALL), ["n=4->1"], {"n": 1}),
        (completion('"n":1'), Degradation(cut=ALL), [], {}),
        (completion('"use_beam_search":true'), Degradation(cut=ALL), [], {}),
        # What other engines and older releases call it.
        (completion('"num_beams":4'), Degradation(cut=NONE), [], {}),
        (completion('"num_beams":4'), Degradation(cut=BEAMS), ["num_beams=4->1"], {"num_beams": 1}),
        (completion('"num_beams":1,"best_of":1'), Degradation(cut=ALL), [], {}),
        (completion('"best_of":8'), Degradation(cut=BEAMS), ["best_of=8->1"], {"best_of": 1}),
        # Never below `n`: the engine refuses that.
        (completion('"n":4,"best_of":8'), Degradation(cut=BEAMS), ["best_of=8->4"], {"best_of": 4}),
        (completion('"n":4,"best_of":8'), Degradation(cut=ALL), ["n=4->1", "best_of=8->1"], {"n": 1, "best_of": 1}),
        # An engine that knows these names refuses such values, one that does not ignores them.
        (completion('"num_beams":"x","best_of":1e400'), Degradation(cut=ALL), [], {}),
        (
            chat('"max_tokens":1024,"use_beam_search":"yes","n":"4"'),
            Degradation(output_cap=512, cut=BEAMS),
            ["max_tokens=1024->512", "use_beam_search=true->false", "n=4->1"],
            {"max_tokens": 512, "use_beam_search": False, "n": 1},
        ),
    ],
)
def test_rewriting(
    request_: InferenceRequest, degradation: Degradation, changes: list[str], written: dict[str, object]
) -> None:
    """What is asked for is lowered where the client said it, and every change is named with both values."""
    rewritten = rewrite(request_, degradation)
    assert rewritten.changes == tuple(changes)
    if not changes:
        assert rewritten.body is request_.body
    after = json.loads(rewritten.body)
    assert {name: after[name] for name in written} == written


def test_everything_else_is_kept_byte_for_byte() -> None:
    """Order, spelling of numbers, escapes and unknown fields survive; what is new comes last."""
    body = b'{ "z":1.50,"messages":[ {"role":"user","content":"h\\u00e9"} ], "n" : 2, "seed":9007199254740993 }'
    rewritten = rewrite(openai_chat.parse(body), Degradation(output_cap=64, cut=ALL))
    assert rewritten.body == (
        b'{"z":1.50,"messages":[ {"role":"user","content":"h\\u00e9"} ],"n":1,"seed":9007199254740993,"max_tokens":64}'
    )


def test_a_change_is_named_in_few_words() -> None:
    """However long the client writes a number, headers and logs carry its value."""
    rewritten = rewrite(completion('"max_tokens":1024.' + "0" * 100_000), Degradation(output_cap=512))
    assert rewritten.changes == ("max_tokens=1024->512",)


def spelled(values: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    """A number in any of the ways a client may write it."""
    forms = st.sampled_from(("{}", '"{}"', "{}.0", '" {}.00"', '"+{}"'))
    return st.builds(str.format, forms, values) | st.just("null")


own_fields = st.fixed_dictionaries(
    {"prompt": st.just("[[1,2,3],[4]]"), "messages": st.just('[ {"content":"\\u00e9"} ]')},
    optional={
        "max_tokens": spelled(st.integers(1, 3000)),
        "max_completion_tokens": spelled(st.integers(1, 3000)),
        "n": spelled(st.integers(1, 5)),
        "best_of": spelled(st.integers(1, 9)),
        "num_beams": spelled(st.integers(1, 9)) | st.just('"x"'),
        "use_beam_search": st.sampled_from(("true", "false", '"on"', "0", "null")),
        "min_tokens": spelled(st.integers(0, 100)),
        "stream": st.sampled_from(("true", "false", '"true"')),
    },
)
other_fields = st.dictionaries(
    st.sampled_from(("temperature", "seed", "user", "x-\u00e9", "stop", "logit_bias")),
    st.sampled_from(("1.50", "1E400", "9007199254740993", '"\\u00e9"', "[1,  2]", '{"a":{"a":null}}', "-0", "null")),
)


@deterministic
@given(
    fields=st.builds(lambda own, others: [*own.items(), *others.items()], own_fields, other_fields).flatmap(
        st.permutations
    ),
    parse=st.sampled_from((openai_chat.parse, openai_completions.parse)),
    tier=st.sampled_from(Tier),
    context=st.sampled_from((None, 100, 4096)),
    policy=st.builds(
        DegradePolicy, trim_factor=st.floats(0.1, 1), max_output_tokens=st.integers(64, 600), collapse_n=st.booleans()
    ),
)
def test_a_rewritten_request_is_the_same_request_asking_for_less(
    fields: list[tuple[str, str]],
    parse: Callable[[bytes], InferenceRequest],
    tier: Tier,
    context: int | None,
    policy: DegradePolicy,
) -> None:
    """It parses again; caps and sequences only fall, to what was decided; all other fields keep their bytes."""
    request = parse(("{" + ", ".join(f'"{name}" : {raw}' for name, raw in fields) + "}").encode())
    prompts = (3, 1)
    asked = request.demand(prompts, context_tokens=context, assumed_output_tokens=256)
    decided, degradation = degrade(asked, tier, policy)
    rewritten = rewrite(request, degradation)
    again = parse(rewritten.body)

    changed = {change.partition("=")[0] for change in rewritten.changes}
    assert len(changed) == len(rewritten.changes)
    assert set(again.fields) == set(request.fields) | changed
    assert {name: bytes(value) for name, value in again.fields.items() if name not in changed} == {
        name: bytes(value) for name, value in request.fields.items() if name not in changed
    }
    for change in rewritten.changes:
        before, after = change.partition("=")[2].split("->")
        assert before in ("unset", "true") or int(after) < int(before)

    remaining = again.demand(prompts, context_tokens=context, assumed_output_tokens=256)
    assert (remaining.copies, remaining.beams) == (decided.copies, decided.beams)
    assert remaining.output_cap == decided.output_cap
    assert remaining.min_tokens == asked.min_tokens or (asked.beams and remaining.min_tokens < asked.min_tokens)
    assert degradation.output_cap is None or remaining.min_tokens <= degradation.output_cap
    assert remaining.sequences <= asked.sequences
    assert remaining.output_cap is None or asked.output_cap is None or remaining.output_cap <= asked.output_cap
    assert rewrite(again, degradation).changes == ()


# TGI, whose releases differ in what they make of a request

tgi_caps = st.just("null") | st.integers(1, 3000).map(str)
tgi_others = st.dictionaries(
    st.sampled_from(("temperature", "seed", "do_sample", "num_beams", "n", "details", "x-\u00e9")),
    st.sampled_from(("1.50", "1E400", "9007199254740993", '"\\u00e9"', "[1,  2]", '{"a":{"a":null}}', "-0", "true")),
)
tgi_parameters = st.builds(
    lambda own, others: others | own,
    st.fixed_dictionaries({}, optional={"max_new_tokens": tgi_caps, "best_of": st.integers(1, 3).map(str)}),
    tgi_others,
)


def written(members: dict[str, str]) -> str:
    """An object as a client may space it."""
    return "{ " + ", ".join(f'"{name}" : {raw}' for name, raw in members.items()) + " }"


native_bodies = st.builds(
    lambda parameters, others: {"inputs": '"hi"'} | others | parameters,
    st.fixed_dictionaries({}, optional={"parameters": tgi_parameters.map(written)}),
    tgi_others,
)
chat_bodies = st.builds(
    lambda caps, others: {"messages": "[]"} | others | caps,
    st.dictionaries(st.sampled_from(("max_tokens", "max_completion_tokens")), tgi_caps, max_size=1),
    tgi_others,
)
completion_bodies = st.builds(
    lambda caps, others: {"prompt": '["a","b"]'} | others | caps,
    st.fixed_dictionaries({}, optional={"max_tokens": tgi_caps}),
    tgi_others,
)
vertex_bodies = st.builds(
    lambda instances: {"instances": "[" + ", ".join(map(written, instances)) + "]"},
    st.lists(native_bodies | chat_bodies, min_size=1, max_size=3),
)
tgi_requests = st.one_of(
    st.tuples(st.just(tgi_generate.parse), native_bodies),
    st.tuples(st.just(tgi_chat.parse), chat_bodies),
    st.tuples(st.just(tgi_completions.parse), completion_bodies),
    st.tuples(st.just(tgi_vertex.parse), vertex_bodies),
)
CAPS = ("max_new_tokens", "max_tokens", "max_completion_tokens")


def generations(body: bytes) -> list[dict]:
    """What is generated by: the parameters of each native request, the fields of any other; whether it samples."""
    fields = json.loads(body, parse_float=str)
    return [
        each if "inputs" not in each else {"do_sample": True, **each, **(each.get("parameters") or {"do_sample": True})}
        for each in fields.get("instances", [fields])
    ]


@deterministic
@given(
    chosen=tgi_requests,
    tier=st.sampled_from(Tier),
    context=st.sampled_from((None, 100, 4096)),
    release=st.none()
    | st.builds(
        Release,
        default_output_tokens=st.none() | st.integers(1, 3000),
        ignored_caps=st.sampled_from((frozenset(), frozenset({"max_completion_tokens"}))),
    ),
    policy=st.builds(DegradePolicy, trim_factor=st.floats(0.1, 1), max_output_tokens=st.integers(64, 600)),
)
def test_a_rewritten_request_of_tgi_is_the_same_request_asking_for_less(
    chosen: tuple[Callable[[bytes], InferenceRequest], dict[str, str]],
    tier: Tier,
    context: int | None,
    release: Release | None,
    policy: DegradePolicy,
) -> None:
    """It parses again, with one cap a release knows at most; all but caps and copies stays, sampling above all."""
    parse, members = chosen
    request = parse(written(members).encode())
    prompts = (3,) * (len(request.parts) or 2)
    asked = request.demand(prompts, context_tokens=context, assumed_output_tokens=256, release=release)
    decided, degradation = degrade(asked, tier, policy)
    rewritten = rewrite(request, degradation, release=release)
    again = parse(rewritten.body)

    for before, after in zip(generations(request.body), generations(rewritten.body), strict=True):
        known = [name for name in CAPS if name in after and (release is None or name not in release.ignored_caps)]
        assert len(known) <= 1
        dropped = {*CAPS, "parameters", "best_of"}
        assert {name: after[name] for name in after if name not in dropped} == {
            name: before[name] for name in before if name not in dropped
        }
    for name, raw in request.fields.items():
        if name not in {*CAPS, "parameters", "instances"}:
            assert bytes(again.fields[name]) == bytes(raw)

    remaining = again.demand(prompts, context_tokens=context, assumed_output_tokens=256, release=release)
    assert remaining.sequences == decided.sequences <= asked.sequences
    assert remaining.output_cap == decided.output_cap
    assert asked.output_cap is None or (remaining.output_cap is not None and remaining.output_cap <= asked.output_cap)
    assert rewrite(again, degradation, release=release).changes == ()
