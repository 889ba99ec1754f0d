"""POST /v1/messages: bytes in, request out, and streams as vLLM 0.32 sends them."""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.footprint import Trait
from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.errors import InvalidRequest
from kvguard.protocols.anthropic_errors import ANTHROPIC_ERRORS
from kvguard.protocols.anthropic_messages import PATH, ROUTE, STREAM, parse
from kvguard.protocols.fields import Fields, write_fields
from kvguard.protocols.prompts import ChatPrompt, TokenPrompts
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.sse import StreamReader, Usage, read_usage
from tests.kit.properties import deterministic
from tests.protocols.any_json import objects

BODY = b"""{"model":"tiny", "max_tokens": 50, "system":"be", "messages": [ {"role":"user","content":"h\\u00e9"} ],
"stream": true, "temperature":1.0, "metadata":{"user_id":"x"}}"""

# vLLM 0.32.0; ids shortened, a thought and a call before the text.
STREAMED = b"""\
event: message_start
data: {"type":"message_start","message":{"id":"chatcmpl-8","type":"message","role":"assistant","content":[],\
"model":"tiny","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":5,"output_tokens":0}}}

event: content_block_start
data: {"type":"content_block_start","content_block":{"type":"thinking","thinking":""},"index":0}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"VENT"},"index":0}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\\"a\\":"},"index":1}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"\\nevent: error\\ndata: {"},"index":2}

: keep-alive

event: content_block_delta
data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"event: content_block_delta"},"index":2}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"max_tokens","stop_sequence":null},\
"usage":{"input_tokens":5,"output_tokens":4}}

event: message_stop
data: {"type":"message_stop"}

"""
FAILED = b"""\
event: error
data: {"type":"error","error":{"type":"internal_error","message":"x"}}

"""
ANSWER = b"""{"id":"chatcmpl-a","type":"message","role":"assistant","content":[{"type":"text","text":"VENT"}],\
"model":"tiny","stop_reason":"max_tokens","usage":{"input_tokens":5,"output_tokens":4}}"""


def asked(more: str = "", *, messages: str = "[]") -> InferenceRequest:
    return parse(b'{"messages":%s,"max_tokens":2000%s}' % (messages.encode(), more.encode()))


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
    assert request.caps.names == ("max_tokens",)
    assert isinstance(request.prompt, ChatPrompt)
    assert set(request.prompt.fields) == {"messages"}
    assert set(request.fields) == {"model", "max_tokens", "system", "messages", "stream", "temperature", "metadata"}


@pytest.mark.parametrize(
    ("cap", "tokens"),
    [(b"1", 1), (b'"7"', 7), (b"5.0", 5), (b"0", None), (b"-1", None), (b"null", None), (b"5.5", None)],
)
def test_the_cap_is_required(cap: bytes, tokens: int | None) -> None:
    """Every way to leave it out or to name none is refused, as by the engine."""
    body = b'{"messages":[],"echo":true,"max_tokens":%s}' % cap
    if tokens is not None:
        assert parse(body).requested_cap == tokens
        return
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    assert caught.value.param == "max_tokens"


def test_no_cap_at_all() -> None:
    """It is named as what is missing."""
    with pytest.raises(InvalidRequest, match="'max_tokens' is required") as caught:
        parse(b'{"messages":[]}')
    assert caught.value.param == "max_tokens"


def test_what_is_not_in_the_schema_says_nothing() -> None:
    """Fields of other routes, valid or not, make no difference to what is held."""
    foreign = ',"n":5,"use_beam_search":true,"min_tokens":9,"ignore_eos":true,"truncate_prompt_tokens":1,"stop":["x"]'
    request = asked(foreign + ',"response_format":7,"add_special_tokens":"x","max_completion_tokens":3')
    assert (request.copies, request.beams, request.min_tokens, request.fixed_length) == (1, False, 0, False)
    assert (request.truncate_to, request.stops, request.traits) == (None, False, frozenset())
    assert request.requested_cap == 2000


@pytest.mark.parametrize(
    ("more", "traits"),
    [
        ('"tools":[]', set()),
        ('"tools":[{"name":"f","input_schema":{}}]', {Trait.TOOLS}),
        ('"thinking":{"type":"disabled"}', set()),
        ('"thinking":{"type":"enabled","budget_tokens":1024}', {Trait.REASONING}),
        ('"thinking":{"type":"adaptive"}', {Trait.REASONING}),
        ('"thinking":null', set()),
        ('"output_config":{"effort":"low"}', set()),
        ('"output_config":{"format":null}', set()),
        ('"output_config":{"format":{"type":"json_schema","schema":{}}}', {Trait.STRUCTURED_OUTPUT}),
        ('"output_config":null', set()),
    ],
)
def test_traits(more: str, traits: set[Trait]) -> None:
    """Tools, a form and thinking each make a shorter answer unacceptable."""
    assert asked("," + more).traits == traits


def test_a_tool_that_is_declared_later_is_a_tool() -> None:
    """A system message may bring the first."""
    added = '{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"name":"f","input_schema":{}}}}'
    assert asked(messages=f'[{{"role":"system","content":[{added}]}}]').traits == {Trait.TOOLS}


@pytest.mark.parametrize(("more", "stops"), [('"stop_sequences":["x"]', True), ('"stop_sequences":[]', False)])
def test_stop_sequences(more: str, stops: bool) -> None:
    """Under their own name here."""
    assert asked("," + more).stops is stops


def test_ids_replace_the_messages() -> None:
    """Tools are known all the same."""
    request = asked(',"kv_transfer_params":{"prompt_token_ids":[1,2]},"tools":[{"name":"f","input_schema":{}}]')
    assert (request.prompt, request.traits) == (TokenPrompts((2,)), {Trait.TOOLS})


def test_rewriting() -> None:
    """The one cap is lowered, and all else is left alone, one sequence as it is."""
    request = parse(BODY)
    rewritten = rewrite(request, Degradation(output_cap=20, cut=SequenceCut.ALL), ask_usage=True)
    assert rewritten.changes == ("max_tokens=50->20",)
    again = parse(rewritten.body)
    assert again.requested_cap == 20
    assert {**again.fields, "max_tokens": request.fields["max_tokens"]} == request.fields
    assert rewrite(request, Degradation(output_cap=50, cut=SequenceCut.ALL), ask_usage=True).body is BODY


@pytest.mark.parametrize("name", ["system", "messages", "output_config", "chat_template_kwargs", "thinking"])
def test_more_values_than_any_conversation_has_are_refused(name: str) -> None:
    """They are counted together before anything is built."""
    half = "[" + "{}," * 40_000 + "{}]"
    other = "messages" if name == "system" else "system"
    with pytest.raises(InvalidRequest, match="more than 65536 lists, objects and entries"):
        parse(f'{{"max_tokens":5,"{other}":{half},"{name}":{half}}}'.encode())


@deterministic
@given(objects("messages", "system", "tools", "thinking", "output_config", "max_tokens", "stop_sequences", "stream"))
def test_any_json(fields: Fields) -> None:
    """Whatever the fields hold, the request is read or refused."""
    with contextlib.suppress(InvalidRequest):
        parse(write_fields(fields))


def test_the_route() -> None:
    """Anthropic's path, errors and stream."""
    assert (PATH, ROUTE.path, ROUTE.errors, ROUTE.stream) == ("/v1/messages", PATH, ANTHROPIC_ERRORS, STREAM)


@deterministic
@given(cuts=st.lists(st.integers(0, len(STREAMED)), max_size=12))
def test_a_stream_in_any_pieces(cuts: list[int]) -> None:
    """Every delta counts once, the usage is the last, and no text is taken for an event."""
    edges = [0, *sorted(cuts), len(STREAMED)]
    reader = fed(*(STREAMED[start:end] for start, end in itertools.pairwise(edges)))
    assert (reader.events, reader.usage()) == (4, Usage(prompt_tokens=5, completion_tokens=4))
    assert (reader.complete, reader.failed, reader.at_boundary) == (True, False, True)


def test_a_stream_that_breaks_anywhere() -> None:
    """Nothing but the terminator's own data completes it."""
    end = STREAMED.index(b'data: {"type":"message_stop"') + len(b'data: {"type":"message_stop"')
    for cut in range(0, len(STREAMED), 7):
        assert fed(STREAMED[:cut]).complete is (cut >= end)
    assert not fed(STREAMED[: end - 1]).complete
    assert fed(STREAMED[:end]).complete


@pytest.mark.parametrize("framing", [b"\n", b"\r\n"])
def test_a_stream_that_fails(framing: bytes) -> None:
    """The engine's own error event says so."""
    reader = fed(STREAMED[: STREAMED.index(b"event: message_delta")], FAILED.replace(b"\n", framing))
    assert (reader.complete, reader.failed) == (False, True)


def test_a_plain_answer() -> None:
    """Its usage has this API's names."""
    assert read_usage(ANSWER) == Usage(prompt_tokens=5, completion_tokens=4)
