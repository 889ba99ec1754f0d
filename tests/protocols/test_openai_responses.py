"""POST /v1/responses: bytes in, request out, and streams as vLLM 0.32 sends them."""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.footprint import Trait
from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, write_fields
from kvguard.protocols.openai_responses import PATH, ROUTE, STREAM, parse
from kvguard.protocols.prompts import ChatPrompt, OpenEndedPrompt, TokenPrompts
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.responses_errors import RESPONSES_ERRORS
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.sse import TAIL_BYTES, StreamReader, Usage, read_usage
from tests.kit.properties import deterministic
from tests.protocols.any_json import objects

BODY = b"""{"model":"tiny", "input": "h\\u00e9", "instructions":"be", "max_output_tokens": 50, "stream": true,
"temperature":1.0, "store":false}"""

# vLLM 0.32.0; ids shortened and the request's echo left out, a thought and a call before the text.
STREAMED = b"""\
event: response.created
data: {"response":{"id":"resp_a","output":[],"usage":null},"sequence_number":0,"type":"response.created"}

event: response.in_progress
data: {"response":{"id":"resp_a","output":[],"usage":null},"sequence_number":1,"type":"response.in_progress"}

event: response.output_item.added
data: {"item":{"id":"msg_a","content":[]},"output_index":0,"sequence_number":2,"type":"response.output_item.added"}

event: response.reasoning_text.delta
data: {"content_index":0,"delta":"VENT","output_index":0,"sequence_number":3,"type":"response.reasoning_text.delta"}

event: response.function_call_arguments.delta
data: {"delta":"{","output_index":1,"sequence_number":4,"type":"response.function_call_arguments.delta"}

event: response.output_text.delta
data: {"delta":".delta\\ndata:","output_index":2,"sequence_number":5,"type":"response.output_text.delta"}

event: response.output_text.delta
data: {"delta":"\\"type\\":\\"response.completed\\"}\\n","sequence_number":6,"type":"response.output_text.delta"}

event: response.output_text.done
data: {"output_index":0,"sequence_number":7,"text":"x","type":"response.output_text.done"}

"""
USAGE = b'"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":0},"output_tokens":4,"total_tokens":9}'
LAST = (
    b"""\
event: response.completed
data: {"response":{"id":"resp_a","output":[%s],"status":"incomplete","""
    + USAGE
    + b"""},\
"sequence_number":8,"type":"response.completed"}

"""
)
WHOLE = STREAMED + LAST % b""


def asked(more: str = "", *, given: str = '"hi"') -> InferenceRequest:
    return parse(b'{"input":%s%s}' % (given.encode(), more.encode()))


def fed(*blocks: bytes) -> StreamReader:
    reader = StreamReader(STREAM)
    for block in blocks:
        reader.feed(block)
    return reader


def test_a_request() -> None:
    """The client's bytes are kept, and what matters to the cache is read from them."""
    request = parse(BODY)
    assert request.body == BODY
    assert (request.model, request.stream, request.requested_cap, request.hides_usage) == ("tiny", True, 50, False)
    assert (request.caps.names, request.caps.default_tokens) == (("max_output_tokens",), None)
    assert isinstance(request.prompt, ChatPrompt)
    assert set(request.prompt.fields) == {"messages", "add_special_tokens"}


@pytest.mark.parametrize(("more", "cap"), [("", None), (',"max_output_tokens":null', None), (',"max_tokens":5', None)])
def test_an_open_cap(more: str, cap: int | None) -> None:
    """It is the rest of the context, and other names are not read."""
    assert asked(more).requested_cap == cap


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ('"max_output_tokens":0', "max_output_tokens"),
        ('"max_output_tokens":"x"', "max_output_tokens"),
        ('"background":true', "background"),
        ('"background":"yes"', "background"),
        ('"background":7', "background"),
        ('"truncation":"middle"', "truncation"),
        ('"truncation":1', "truncation"),
        ('"tools":["x"]', "tools"),
        ('"kv_transfer_params":{"prompt_token_ids":[1]},"tools":["x"]', "tools"),
        ('"kv_transfer_params":{"prompt_token_ids":[1]},"tools":[{"type":[]}]', "tools"),
        ('"text":"x"', "text"),
        ('"text":{"format":"x"}', "text"),
        ('"prompt":{"id":"x"}', "prompt"),
    ],
)
def test_what_is_refused(more: str, param: str) -> None:
    """By the name of the field, before anything is held."""
    with pytest.raises(InvalidRequest) as caught:
        asked("," + more)
    assert caught.value.param == param


def test_what_is_not_in_the_schema_says_nothing() -> None:
    """Fields of other routes, valid or not, make no difference to what is held."""
    foreign = ',"n":"x","use_beam_search":true,"min_tokens":9,"truncate_prompt_tokens":1,"response_format":7,"echo":1'
    request = asked(foreign + ',"background":false')
    assert (request.copies, request.beams, request.min_tokens) == (1, False, 0)
    assert (request.truncate_to, request.traits) == (None, frozenset())


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ("", None),
        (',"truncation":"disabled"', None),
        (',"truncation":"auto"', -1),
        (',"truncation":null', -1),
    ],
)
def test_truncation(more: str, kept: int | None) -> None:
    """`auto` cuts the prompt to the context, as -1 does elsewhere; null is not `disabled` to the engine."""
    assert asked(more).truncate_to == kept


@pytest.mark.parametrize(
    ("more", "traits"),
    [
        ('"tools":[]', set()),
        ('"tools":[{"type":"function","name":"f"}]', {Trait.TOOLS}),
        ('"text":null', set()),
        ('"text":{}', set()),
        ('"text":{"format":null}', set()),
        ('"text":{"format":{"type":"text"}}', set()),
        ('"text":{"format":{"type":"json_object"}}', {Trait.STRUCTURED_OUTPUT}),
        ('"text":{"format":{"type":"json_schema","name":"n","schema":{}}}', {Trait.STRUCTURED_OUTPUT}),
        ('"structured_outputs":{"regex":"x"}', {Trait.STRUCTURED_OUTPUT}),
    ],
)
def test_traits(more: str, traits: set[Trait]) -> None:
    """Tools and forms make a shorter answer unacceptable."""
    assert asked("," + more).traits == traits


@pytest.mark.parametrize(
    ("tools", "runs"),
    [
        ("[]", False),
        ('[{"type":"function","name":"f"},{"type":"web_search"}]', False),
        ('[{"type":"function","name":"f"},{"type":"mcp","server_label":"x"}]', True),
        ('[{"type":"web_search_preview"}]', True),
        ('[{"type":"code_interpreter","container":{}}]', True),
        ('[{"type":"container"}]', True),
        ('[{"name":"x"}]', False),
    ],
)
def test_tools_that_the_server_runs(tools: str, runs: bool) -> None:
    """Those an engine with a tool server knows; it may then generate more than once."""
    assert asked(f',"tools":{tools}').runs_tools is runs


@pytest.mark.parametrize(
    ("more", "whole"),
    [("", True), (',"previous_response_id":"resp_a"', False), (',"tools":[{"type":"container"}]', False)],
)
def test_whether_usage_is_of_the_prompt_alone(more: str, whole: bool) -> None:
    """Not with history of the engine's own, and not where it may generate again."""
    assert asked(more).names_whole_prompt is whole


def test_whatever_else_is_read() -> None:
    """Stop sequences and a fixed length, by the names all routes have."""
    assert asked(',"stop":["x"]').stops
    assert asked(',"stop_token_ids":[7]').stops
    assert asked(',"ignore_eos":true').fixed_length


def test_prompts() -> None:
    """Ids replace the input, and history of the engine's own leaves the prompt open."""
    assert asked(',"kv_transfer_params":{"prompt_token_ids":[1,2]}').prompt == TokenPrompts((2,))
    assert isinstance(asked(',"previous_response_id":"resp_a"').prompt, OpenEndedPrompt)


def test_rewriting() -> None:
    """The one cap is lowered, or named where it was open."""
    degradation = Degradation(output_cap=20, cut=SequenceCut.ALL)
    assert rewrite(parse(BODY), degradation, ask_usage=True).changes == ("max_output_tokens=50->20",)
    rewritten = rewrite(asked(), degradation)
    assert rewritten.changes == ("max_output_tokens=unset->20",)
    assert rewritten.body == b'{"input":"hi","max_output_tokens":20}'
    assert rewrite(parse(BODY), Degradation(), ask_usage=True).body is BODY


@pytest.mark.parametrize("name", ["instructions", "previous_input_messages", "chat_template_kwargs", "reasoning"])
def test_more_values_than_any_conversation_has_are_refused(name: str) -> None:
    """They are counted together before anything is built."""
    half = "[" + "{}," * 40_000 + "{}]"
    with pytest.raises(InvalidRequest, match="more than 65536 lists, objects and entries"):
        parse(f'{{"input":{half},"{name}":{half}}}'.encode())


@deterministic
@given(objects("input", "instructions", "tools", "text", "truncation", "background", "reasoning", "max_output_tokens"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold, the request is read or refused."""
    with contextlib.suppress(InvalidRequest):
        parse(write_fields(fields))


def test_the_route() -> None:
    """OpenAI's path, errors and events of its own."""
    assert (PATH, ROUTE.path, ROUTE.errors, ROUTE.stream) == ("/v1/responses", PATH, RESPONSES_ERRORS, STREAM)


@deterministic
@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_a_stream_in_any_pieces(cuts: list[int]) -> None:
    """Every delta counts once, whatever it is of, the usage is the last, and no text is taken for an event."""
    edges = [0, *sorted(cuts), len(WHOLE)]
    reader = fed(*(WHOLE[start:end] for start, end in itertools.pairwise(edges)))
    assert (reader.events, reader.usage()) == (4, Usage(prompt_tokens=5, completion_tokens=4))
    assert (reader.complete, reader.failed, reader.at_boundary) == (True, False, True)


def test_a_stream_that_breaks_anywhere() -> None:
    """Nothing but a whole last event completes it."""
    whole = len(WHOLE) - 1
    for cut in (*range(0, len(WHOLE), 7), whole - 1, whole, len(WHOLE)):
        assert fed(WHOLE[:cut]).complete is (cut >= whole), cut


@pytest.mark.parametrize("size", [10, TAIL_BYTES - 200, TAIL_BYTES, 10 * TAIL_BYTES])
@pytest.mark.parametrize("name", [b"completed", b"incomplete"])
def test_an_answer_of_any_length_is_known_to_be_whole(size: int, name: bytes) -> None:
    """The last event repeats the answer, so that only its end may be at hand."""
    reader = fed(STREAMED, (LAST % (b'"%s"' % (b"x" * size))).replace(b"completed", name))
    assert (reader.complete, reader.failed) == (True, False)
    assert reader.usage() == Usage(prompt_tokens=5, completion_tokens=4)


@pytest.mark.parametrize("framing", [b"\n", b"\r\n"])
def test_the_order_of_the_last_events_members_is_free(framing: bytes) -> None:
    """While its name is at hand that is enough."""
    last = b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n'
    assert fed(STREAMED, last.replace(b"\n", framing)).complete


@pytest.mark.parametrize(
    "event",
    [
        b'event: error\ndata: {"type":"error","message":"x"}\n\n',
        b'event: response.failed\ndata: {"response":{"status":"failed"},"type":"response.failed"}\n\n',
        b'event: response.failed\ndata: {"response":{"x":"%s"},"type":"response.failed"}\n\n' % (b"x" * TAIL_BYTES),
    ],
)
def test_a_stream_that_fails(event: bytes) -> None:
    """By an error, or by an answer that says that it failed, of whatever length."""
    reader = fed(STREAMED, event)
    assert (reader.complete, reader.failed) == (False, True)


def test_a_plain_answer() -> None:
    """Its usage has this API's names."""
    answer = b'{"id":"resp_b","object":"response","output":[],"status":"incomplete",' + USAGE + b"}"
    assert read_usage(answer) == Usage(prompt_tokens=5, completion_tokens=4)
