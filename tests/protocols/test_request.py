"""What a request asks of the cache."""

import json
from collections.abc import Callable

import pytest

from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.policy import DegradePolicy, degrade
from kvguard.admission.population import Population
from kvguard.admission.tiers import Tier
from kvguard.errors import InvalidRequest
from kvguard.protocols import openai_chat, openai_completions
from kvguard.protocols.request import InferenceRequest


def completion(fields: str = "") -> InferenceRequest:
    return openai_completions.parse(b'{"prompt":"hi"' + (f",{fields}" if fields else "").encode() + b"}")


def chat(fields: str = "") -> InferenceRequest:
    return openai_chat.parse(b'{"messages":[]' + (f",{fields}" if fields else "").encode() + b"}")


# Reading


def test_a_request_that_sets_nothing() -> None:
    """Every default is the engine's."""
    request = completion()
    assert (request.stream, request.copies, request.beams, request.min_tokens) == (False, 1, False, 0)
    assert (request.requested_cap, request.truncate_to, request.traits) == (None, None, frozenset())
    assert (request.model, request.model_field) == (None, {})


@pytest.mark.parametrize(
    ("fields", "copies", "beams"),
    [
        ('"n":null', 1, False),
        ('"n":1', 1, False),
        ('"n":"4"', 4, False),
        ('"n":16384', 16384, False),
        ('"n":4,"use_beam_search":true', 4, True),
        ('"n":4,"use_beam_search":"true"', 4, True),
        ('"n":4,"use_beam_search":false', 4, False),
        ('"n":2,"use_beam_search":1', 2, True),
        # One beam is one sequence.
        ('"n":1,"use_beam_search":true', 1, False),
        ('"use_beam_search":true', 1, False),
        # Not fields of this engine.
        ('"num_beams":4,"best_of":8', 1, False),
        ('"num_beams":"x","best_of":[]', 1, False),
    ],
)
def test_sequences(fields: str, copies: int, beams: bool) -> None:
    """`n` is the number of copies, and the width of a beam search where there is one."""
    request = completion(fields)
    assert (request.copies, request.beams) == (copies, beams)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ('"n":0', "n"),
        ('"n":-1', "n"),
        ('"n":16385', "n"),
        ('"n":1.5', "n"),
        ('"n":"x"', "n"),
        ('"n":1e400', "n"),
        ('"stream":"x"', "stream"),
        ('"n":2,"use_beam_search":2', "use_beam_search"),
        ('"min_tokens":[]', "min_tokens"),
        ('"truncate_prompt_tokens":"x"', "truncate_prompt_tokens"),
        ('"ignore_eos":"x"', "ignore_eos"),
        ('"max_tokens":0', "max_tokens"),
        ('"max_tokens":-1', "max_tokens"),
        ('"max_tokens":-1,"echo":true', "max_tokens"),
        ('"max_tokens":0,"echo":false', "max_tokens"),
        ('"max_tokens":5.5', "max_tokens"),
        ('"max_tokens":1e400', "max_tokens"),
        (f'"max_tokens":{10**40}', "max_tokens"),
    ],
)
def test_what_no_engine_takes(fields: str, param: str) -> None:
    """A value the engine answers with 400 is refused by the name of its field."""
    with pytest.raises(InvalidRequest) as caught:
        completion(fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "min_tokens"),
    [('"min_tokens":null', 0), ('"min_tokens":0', 0), ('"min_tokens":-5', 0), ('"min_tokens":"7"', 7)],
)
def test_min_tokens(fields: str, min_tokens: int) -> None:
    """The least output a client wants; less than nothing is nothing."""
    assert completion(fields).min_tokens == min_tokens


@pytest.mark.parametrize(
    ("fields", "traits"),
    [
        ("", set()),
        ('"tools":null', set()),
        ('"tools":[]', set()),
        ('"tools":[{"type":"function"}]', {Trait.TOOLS}),
        ('"functions":[{"name":"f"}]', {Trait.TOOLS}),
        ('"functions":[]', set()),
        ('"response_format":null', set()),
        ('"response_format":{"type":"text"}', set()),
        ('"response_format":{"type":"json_object"}', {Trait.STRUCTURED_OUTPUT}),
        ('"response_format":{"type":"json_schema","json_schema":{}}', {Trait.STRUCTURED_OUTPUT}),
        ('"response_format":{}', {Trait.STRUCTURED_OUTPUT}),
        ('"response_format":"text"', {Trait.STRUCTURED_OUTPUT}),
        ('"structured_outputs":{"json":{}}', {Trait.STRUCTURED_OUTPUT}),
        ('"guided_json":{}', {Trait.STRUCTURED_OUTPUT}),
        ('"guided_regex":"a"', {Trait.STRUCTURED_OUTPUT}),
        ('"guided_choice":["a"]', {Trait.STRUCTURED_OUTPUT}),
        ('"guided_grammar":"a"', {Trait.STRUCTURED_OUTPUT}),
        ('"guided_json":null', set()),
        ('"tools":[1],"guided_json":{}', {Trait.TOOLS, Trait.STRUCTURED_OUTPUT}),
    ],
)
def test_traits(fields: str, traits: set[Trait]) -> None:
    """Tools and structured output count where they are asked for; null, no tools and plain text are not asking."""
    assert chat(fields).traits == traits


@pytest.mark.parametrize(
    ("fields", "model", "raw"),
    [
        ('"model":"tiny"', "tiny", b'"tiny"'),
        ('"model":"t\\u00efny"', "t\u00efny", b'"t\\u00efny"'),
        ('"model":""', "", b'""'),
        ('"model":null', None, b"null"),
        ('"model":7', None, b"7"),
    ],
)
def test_the_model(fields: str, model: str | None, raw: bytes) -> None:
    """Its name where it is text, and the field as the client sent it."""
    request = completion(fields)
    assert request.model == model
    assert {name: bytes(value) for name, value in request.model_field.items()} == {"model": raw}


# Demand


@pytest.mark.parametrize(
    ("request_", "prompts", "context", "cap", "expected"),
    [
        # Completions: sixteen tokens unless asked otherwise.
        (completion(), (100,), 2048, 16, 16),
        (completion(), (100,), None, 16, 16),
        (completion(), (2040,), 2048, 8, 8),
        (completion('"max_tokens":1024'), (100,), None, 1024, 1024),
        (completion('"max_tokens":1948'), (100,), 2048, 1948, 1948),
        (completion('"max_tokens":1949'), (100,), 2048, 1948, 1948),
        # Chat: the rest of the context, of which the assumption is reserved.
        (chat(), (100,), 2048, 1948, 256),
        (chat(), (100,), None, None, 256),
        (chat(), (1792,), 2048, 256, 256),
        (chat(), (1793,), 2048, 255, 255),
        (chat('"max_completion_tokens":50'), (100,), 2048, 50, 50),
        (chat('"max_tokens":300'), (100,), 2048, 300, 300),
        # A prompt that leaves no room is for the engine to refuse.
        (chat(), (2048,), 2048, 1, 1),
        (chat(), (3000,), 2048, 1, 1),
        # It runs on whatever it says: to its cap, where one is known.
        (chat('"ignore_eos":true'), (100,), 2048, 1948, 1948),
        (chat('"ignore_eos":true'), (100,), None, None, 256),
        (chat('"ignore_eos":true,"max_tokens":300'), (100,), 2048, 300, 300),
        (completion('"ignore_eos":"true"'), (2040,), 2048, 8, 8),
        # Several prompts share one cap: the shortest has the most room.
        (completion('"max_tokens":5000'), (100, 2000), 2048, 1948, 1948),
    ],
)
def test_caps_are_resolved_as_the_engine_does(
    request_: InferenceRequest, prompts: tuple[int, ...], context: int | None, cap: int | None, expected: int
) -> None:
    """The client's cap or the route's default, within the room the context leaves."""
    demand = request_.demand(prompts, context_tokens=context, assumed_output_tokens=256)
    assert (demand.prompts, demand.output_cap, demand.expected_output) == (prompts, cap, expected)
    assert demand.asked_cap == cap


@pytest.mark.parametrize(
    ("truncate", "prompts", "context", "truncated"),
    [
        ("null", (100,), 2048, (100,)),
        ("50", (100, 49, 50, 51), 2048, (50, 49, 50, 50)),
        ("0", (100,), 2048, (0,)),
        # -1: one token short of the context.
        ("-1", (3000, 2046, 2047, 2048), 2048, (2047, 2046, 2047, 2047)),
        ("-1", (3000,), None, (3000,)),
    ],
)
def test_prompts_are_truncated_as_the_engine_does(
    truncate: str, prompts: tuple[int, ...], context: int | None, truncated: tuple[int, ...]
) -> None:
    """Only what is left of a prompt takes KV, and the room for output grows by what is cut."""
    request = completion(f'"truncate_prompt_tokens":{truncate},"max_tokens":5000')
    demand = request.demand(prompts, context_tokens=context, assumed_output_tokens=256)
    assert demand.prompts == truncated
    assert demand.output_cap == (5000 if context is None else context - min(truncated))


def test_a_demand_carries_what_limits_degradation() -> None:
    """Copies, beams, `min_tokens`, length and traits go into the demand as they were read."""
    request = chat('"n":4,"use_beam_search":true,"min_tokens":7,"tools":[1],"ignore_eos":true')
    demand = request.demand((10,), context_tokens=None, assumed_output_tokens=256)
    assert demand == Demand(
        prompts=(10,),
        copies=4,
        output_cap=None,
        asked_cap=None,
        expected_output=256,
        names_cap=False,
        min_tokens=7,
        beams=True,
        fixed_length=True,
        streamed=False,
        traits=frozenset({Trait.TOOLS}),
    )


@pytest.mark.parametrize(
    ("fields", "fixed"),
    [
        ('"max_tokens":50', False),
        ('"max_tokens":50,"ignore_eos":true', True),
        ('"max_tokens":50,"min_tokens":49', False),
        ('"max_tokens":50,"min_tokens":50', True),
        # The context is the cap.
        ('"max_tokens":5000,"min_tokens":1999', False),
        ('"max_tokens":5000,"min_tokens":2000', True),
    ],
)
def test_which_answers_run_to_their_cap(fields: str, fixed: bool) -> None:
    """Those that ignore their end, and those whose least length is their longest."""
    demand = completion(fields).demand((48,), context_tokens=2048, assumed_output_tokens=256)
    assert demand.fixed_length is fixed


@pytest.mark.parametrize(
    ("fields", "stops"),
    [
        ("", False),
        ('"stop":null', False),
        ('"stop":[]', False),
        ('"stop":""', False),
        ('"stop":[ ]', False),
        ('"stop":"\\n"', True),
        ('"stop":["a","b"]', True),
        ('"stop_token_ids":null', False),
        ('"stop_token_ids":[]', False),
        ('"stop_token_ids":[7]', True),
        # Not for kvguard to refuse.
        ('"stop":5', False),
    ],
)
@pytest.mark.parametrize("parse", [completion, chat])
def test_which_requests_name_stop_sequences(parse: Callable[[str], InferenceRequest], fields: str, stops: bool) -> None:
    """Any text or token that ends the answer early makes it one of a population of its own."""
    request = parse(fields)
    demand = request.demand((10,), context_tokens=None, assumed_output_tokens=256)
    assert (request.stops, demand.population) == (stops, Population(stops=stops))


@pytest.mark.parametrize(
    ("fields", "streamed"),
    [
        ("", False),
        ('"stream":false', False),
        ('"stream":true', True),
        ('"stream":true,"n":4', True),
        # Beams come in one piece at the end.
        ('"stream":true,"n":4,"use_beam_search":true', False),
        ('"stream":true,"n":1,"use_beam_search":true', True),
    ],
)
def test_whose_growth_can_be_watched(fields: str, streamed: bool) -> None:
    """A stream shows how far it is, unless its choices come whole."""
    demand = chat(fields).demand((10,), context_tokens=None, assumed_output_tokens=256)
    assert demand.streamed is streamed


@pytest.mark.parametrize(
    ("truncate", "prompts", "slack"),
    [(None, (110, 30), 20), (105, (105, 30), 15), (100, (100, 30), 10), (15, (15, 15), 0)],
)
def test_headroom_is_part_of_a_prompt_as_far_as_the_cut_allows(
    truncate: int | None, prompts: tuple[int, ...], slack: int
) -> None:
    """A count that may be 10 too low makes room for 10 more, but a prompt that is cut never has more than the cut."""
    fields = {"prompt": ["a", "b"]} | ({} if truncate is None else {"truncate_prompt_tokens": truncate})
    request = openai_completions.parse(json.dumps(fields).encode())
    demand = request.demand((100, 20), slack=(10, 10), context_tokens=2048, assumed_output_tokens=256)
    assert (demand.prompts, demand.slack_tokens) == (prompts, slack)
    assert demand.prompt_tokens == sum(prompts) - slack


@pytest.mark.parametrize(
    ("context", "prompts", "slack"), [(None, (150,), 50), (200, (150,), 50), (120, (120,), 20), (90, (100,), 0)]
)
def test_headroom_ends_with_the_context(context: int | None, prompts: tuple[int, ...], slack: int) -> None:
    """A prompt longer than the context is refused by the engine, so headroom beyond it is for nothing."""
    request = openai_completions.parse(json.dumps({"prompt": "a"}).encode())
    demand = request.demand((100,), slack=(50,), context_tokens=context, assumed_output_tokens=256)
    assert (demand.prompts, demand.slack_tokens) == (prompts, slack)


@pytest.mark.parametrize(
    ("request_", "slack", "cap", "expected"),
    [
        (chat('"max_tokens":1024'), 7168, 1024, 1024),
        (chat('"max_tokens":8000'), 7168, 8192 - 1062, 8192 - 1062),
        (chat(), 7168, 8192 - 1062, 256),
        (chat(), 10**6, 8192 - 1062, 256),
        (chat('"ignore_eos":true'), 7168, 8192 - 1062, 8192 - 1062),
        (completion('"max_tokens":1024'), 0, 1024, 1024),
    ],
)
def test_headroom_takes_no_room_from_the_answer(
    request_: InferenceRequest, slack: int, cap: int, expected: int
) -> None:
    """The cap is what the prompt as counted leaves of the context: it would be lowered by TRIM as without headroom."""
    demand = request_.demand((1062,), slack=(slack,), context_tokens=8192, assumed_output_tokens=256)
    assert demand.slack_tokens == min(slack, 8192 - 1062)
    assert (demand.output_cap, demand.asked_cap, demand.expected_output) == (cap, cap, expected)
    if cap > 512:
        assert degrade(demand, Tier.TRIM, DegradePolicy())[1].output_cap == 512


@pytest.mark.parametrize(
    ("field", "kept"),
    [("", {}), (',"add_special_tokens":true', {}), (',"add_special_tokens":false', {"add_special_tokens": b"false"})],
)
def test_special_tokens_are_named_where_they_are_switched_off(field: str, kept: dict[str, bytes]) -> None:
    """What counts them has to be told."""
    request = openai_completions.parse(f'{{"prompt":"x"{field}}}'.encode())
    assert {name: bytes(value) for name, value in request.special_tokens_field.items()} == kept
