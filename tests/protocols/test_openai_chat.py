"""POST /v1/chat/completions: bytes in, request out."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import MAX_TOOL_VALUES
from kvguard.protocols.fields import MAX_VALUES, value_count
from kvguard.protocols.media import MediaKind, MediaPart
from kvguard.protocols.openai_chat import CAPS, PATH, TEMPLATE_FIELDS, conversation, parse, prompt_of
from kvguard.protocols.prompts import ChatPrompt, TokenPrompts
from tests.kit.properties import deterministic

BODY = b"""{"model":"tiny", "messages": [ {"role":"user","content":"h\\u00e9"} ], "max_completion_tokens": 50,
"n":2, "stream": true, "temperature":1.0, "user":"x"}"""


def test_a_request() -> None:
    """The client's bytes are kept, and what matters to the cache is read from them."""
    request = parse(BODY)
    assert request.body == BODY
    assert request.caps is CAPS
    assert (request.model, request.stream, request.copies, request.requested_cap) == ("tiny", True, 2, 50)
    assert request.prompt == ChatPrompt({"messages": request.fields["messages"]})
    assert bytes(request.fields["messages"]) == b'[ {"role":"user","content":"h\\u00e9"} ]'


MOVED = ("documents", "reasoning_effort")


@pytest.mark.parametrize("name", [name for name in TEMPLATE_FIELDS if name not in MOVED])
def test_everything_the_template_may_look_at_belongs_to_the_prompt(name: str) -> None:
    """Each field a token count depends on is part of the prompt, as the client's own bytes."""
    flags = ("add_special_tokens", "add_generation_prompt", "continue_final_message")
    value = b"1e0" if name in flags else b"[ 7 ]"
    request = parse(b'{"messages":[1],"max_tokens":5,"%s":%s}' % (name.encode(), value))
    assert isinstance(request.prompt, ChatPrompt)
    assert set(request.prompt.fields) == {"messages", name}
    assert bytes(request.prompt.fields[name]) == value


@pytest.mark.parametrize("name", MOVED)
def test_variables_of_the_template_are_moved_to_where_tokenize_takes_them(name: str) -> None:
    """The engine itself hands these two to the template among `chat_template_kwargs`."""
    request = parse(b'{"messages":[1],"%s":"x"}' % name.encode())
    assert isinstance(request.prompt, ChatPrompt)
    assert set(request.prompt.fields) == {"messages", "chat_template_kwargs"}
    assert b'"%s":"x"' % name.encode() in bytes(request.prompt.fields["chat_template_kwargs"])


@pytest.mark.parametrize(
    ("fields", "replaced"),
    [
        (b'"messages":[{"role":"user","content":"hi"}]', True),
        (b'"messages":[]', True),
        (b'"messages":[],"echo":false', True),
        (b'"messages":[],"echo":true', False),
        (b'"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]', False),
    ],
)
def test_ids_replace_the_messages(fields: bytes, replaced: bool) -> None:
    """Unless the request is echoed or has media, the ids are the prompt; the field itself never is part of it."""
    prompt = parse(b'{%s,"kv_transfer_params":{"prompt_token_ids":[5,6,7],"other":1}}' % fields).prompt
    assert (prompt == TokenPrompts((3,))) is replaced
    assert replaced or (isinstance(prompt, ChatPrompt) and set(prompt.fields) == {"messages"})


def test_ids_nobody_reads_may_be_anything() -> None:
    """With an echo the engine does not look at them, without they are refused."""
    broken = b'{"messages":[],"kv_transfer_params":{"prompt_token_ids":"x"},"echo":%s}'
    assert isinstance(parse(broken % b"true").prompt, ChatPrompt)
    with pytest.raises(InvalidRequest) as caught:
        parse(broken % b"false")
    assert caught.value.param == "kv_transfer_params.prompt_token_ids"


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (b'{"role":"a", "reasoning_content":"r"}', b'{"role":"a","reasoning":"r"}'),
        (b'{"reasoning":null,"reasoning_content":"r"}', b'{"reasoning":"r"}'),
        (b'{"reasoning":"own","reasoning_content":"r"}', b'{"reasoning":"own"}'),
        (b'{"content":"reasoning_content"}', b'{"content":"reasoning_content"}'),
        (b'"reasoning_content"', b'"reasoning_content"'),
        (rb'{"reasoning\u005fcontent":"r"}', b'{"reasoning":"r"}'),
        (rb'{"reasoning\u005Fc\u006fntent":"r"}', b'{"reasoning":"r"}'),
        (rb'{"\u0072easoning":"own","reasoning\u005fcontent":"r"}', b'{"reasoning":"own"}'),
        (rb'{"reasoning\\u005fcontent":"r"}', rb'{"reasoning\\u005fcontent":"r"}'),
        (rb'{ "content":"\u00e9" }', rb'{ "content":"\u00e9" }'),
    ],
)
def test_the_old_name_of_reasoning(message: bytes, sent: bytes) -> None:
    """Chat renames it and `/tokenize` does not, so the count is asked for with the new name."""
    prompt = parse(b'{"messages":[%s]}' % message).prompt
    assert isinstance(prompt, ChatPrompt)
    assert bytes(prompt.fields["messages"]) == b"[" + sent + b"]"


@pytest.mark.parametrize(
    "messages", [b"[" * 100_000 + b'"reasoning_content"' + b"]" * 100_000, b'[{"reasoning_content":]']
)
def test_messages_that_cannot_be_renamed(messages: bytes) -> None:
    """What cannot be decoded cannot be a conversation."""
    with pytest.raises(InvalidRequest):
        conversation({"messages": msgspec.Raw(messages)})


@pytest.mark.parametrize(
    ("caps", "cap"),
    [
        (b"", None),
        (b',"max_tokens":7', 7),
        (b',"max_completion_tokens":5', 5),
        (b',"max_completion_tokens":5,"max_tokens":7', 5),
        (b',"max_tokens":5,"max_completion_tokens":7', 7),
        (b',"max_completion_tokens":null,"max_tokens":7', 7),
        (b',"max_completion_tokens":null,"max_tokens":null', None),
        (b',"max_completion_tokens":5,"max_tokens":0', 5),
        (b',"max_output_tokens":5,"max_new_tokens":6', None),
    ],
)
def test_which_cap_counts(caps: bytes, cap: int | None) -> None:
    """`max_completion_tokens` wins over `max_tokens`, null is absent, and other engines' names are not read."""
    assert parse(b'{"messages":[]%s}' % caps).requested_cap == cap


@pytest.mark.parametrize("field", [b"", b'"messages":null', b'"messages":"hi"', b'"messages":{}', b'"prompt":"hi"'])
def test_messages_must_be_a_list(field: bytes) -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidRequest, match="'messages' must be a list") as caught:
        parse(b"{%s}" % field)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens"])
def test_every_cap_must_be_an_integer(name: str) -> None:
    """One that does not count is read as well, so that it can be lowered later."""
    other = "max_tokens" if name == "max_completion_tokens" else "max_completion_tokens"
    with pytest.raises(InvalidRequest) as caught:
        parse(b'{"messages":[],"%s":5,"%s":"x"}' % (other.encode(), name.encode()))
    assert caught.value.param == name


def test_the_path() -> None:
    """The route is OpenAI's own."""
    assert PATH == "/v1/chat/completions"


@pytest.mark.parametrize("name", [name for name in TEMPLATE_FIELDS if name not in ("add_special_tokens", "tools")])
def test_more_values_than_any_conversation_has_are_refused(name: str) -> None:
    """Each costs time, so all that the template may look at is bounded; what strings hold is not counted."""
    value = b'{"name":[' + b"{}," * MAX_VALUES + b"{}]}" if name != "messages" else b"[" + b"{}," * MAX_VALUES + b"{}]"
    with pytest.raises(InvalidRequest, match="more than 65536 lists, objects and entries") as caught:
        parse(b'{"messages":[],"%s":%s}' % (name.encode(), value))
    assert caught.value.param == name
    parse(b'{"messages":[{"content":"x"}],"tools":["%s"]}' % (b"{[," * MAX_VALUES))


def test_a_hundred_tools() -> None:
    """They are passed on as they are, so that they may have more values than a conversation, but not any number."""
    leaf = b'"p":{"type":"string","description":"x"},'
    function = b'{"name":"f","parameters":{"type":"object","properties":{%s"z":{}}}}' % (leaf * 216)
    tools = b"[" + b",".join([b'{"type":"function","function":%s}' % function] * 100) + b"]"
    assert value_count(msgspec.Raw(tools)) > MAX_VALUES
    parse(b'{"messages":[%s{}],"tools":%s}' % (b"{}," * (MAX_VALUES // 2 - 1), tools))
    with pytest.raises(InvalidRequest, match="more than 262144 lists, objects and entries") as caught:
        parse(b'{"messages":[],"tools":[%s0]}' % (b"0," * MAX_TOOL_VALUES))
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "message",
    [
        b'{"role":"user","content":[%s0]}' % (b"0," * 1_000_000),
        b'{"role":"user","content":"x","output":[%s{}]}' % (b'{"file":1},' * 100_000),
        b'{"role":"user","content":[{"content":[%s{}]}]}' % (b'{"file":1},' * 100_000),
        b'{"role":"assistant","reasoning_content":[%s[]]}' % (b"[]," * 1_000_000),
    ],
)
def test_small_bodies_that_would_take_long(message: bytes) -> None:
    """A few megabytes of tiny values are refused by their number."""
    with pytest.raises(InvalidRequest, match="more than 65536"):
        parse(b'{"messages":[%s]}' % message)


@pytest.mark.parametrize("name", ["response_format", "kv_transfer_params", "model", "unknown", "logit_bias"])
def test_what_is_not_built_may_hold_any_number_of_values(name: str) -> None:
    """Of an object only its own members are told apart."""
    inner = b"[" + b"[]," * 100_000 + b"[]]"
    parse(
        b'{"messages":[],"%s":%s}' % (name.encode(), inner if name in ("model", "unknown", "logit_bias") else b"null")
    )
    parse(b'{"messages":[],"%s":{"type":"text"}}' % name.encode())


def test_media_are_apart() -> None:
    """They are found once, when the request is read, and what is counted has a mark in their place."""
    body = b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x"}}]}]}'
    prompt = parse(body).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.media == (MediaPart(kind=MediaKind.IMAGE),)
    assert bytes(prompt.fields["messages"]) == b'[{"role":"user","content":[{"type":"text","text":"[image]"}]}]'


@pytest.mark.parametrize(
    "message",
    [b'{"reasoning_content": "a", 1}', b'{"reasoning_content": "a", "\xff": 1}', b'{"\xff": "reasoning_content"}'],
)
def test_a_message_that_is_no_json_is_refused_by_name(message: bytes) -> None:
    """Also where only its old reasoning makes it be looked into; a key that is not UTF-8 is not seen before."""
    with pytest.raises(InvalidRequest, match="'messages' is not valid JSON") as caught:
        prompt_of({"messages": msgspec.Raw(b"[%s]" % message)})
    assert caught.value.param == "messages"


_BODY = (
    b'{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","uuid":null,'
    b'"image_url":{"url":"data:image/png;base64,AAAA"}}],"reasoning_content":"b"}],"documents":[{"a":"b"}],"n":"1",'
    b'"chat_template_kwargs":{"a":1},"reasoning_effort":"low","kv_transfer_params":{"prompt_token_ids":[1]},'
    b'"response_format":{"type":"text"},"tools":[{"type":"function"}],"stream":false,"max_tokens":5}'
)


@deterministic
@given(st.lists(st.tuples(st.integers(0, len(_BODY) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_damaged_body_is_read_or_refused(damages: list[tuple[int, int]]) -> None:
    """Whatever bytes are in a body, nothing but InvalidRequest comes out."""
    body = bytearray(_BODY)
    for place, byte in damages:
        body[place] = byte
    with contextlib.suppress(InvalidRequest):
        assert parse(bytes(body)).model is not ...


@pytest.mark.parametrize("place", range(len(_BODY)))
def test_a_byte_that_is_not_utf_8_anywhere(place: int) -> None:
    """Inside any key or text."""
    with contextlib.suppress(InvalidRequest):
        assert parse(_BODY[:place] + b"\xff" + _BODY[place + 1 :]).model is not ...


FLAGS = ("add_special_tokens", "add_generation_prompt", "continue_final_message", "echo", "stream", "ignore_eos")


@pytest.mark.parametrize("name", [*FLAGS, "use_beam_search"])
@pytest.mark.parametrize("value", ['"x"', '"maybe"', "5", "3", "-1", "0.5", "[]", "{}", '""'])
def test_what_is_no_truth_value_is_refused_by_name(name: str, value: str) -> None:
    """Every flag is read, whether it matters or not."""
    with pytest.raises(InvalidRequest, match=f"'{name}' must be true or false") as caught:
        parse(f'{{"messages":[],"{name}":{value}}}'.encode())
    assert caught.value.param == name


@pytest.mark.parametrize("name", [*FLAGS, "use_beam_search"])
@pytest.mark.parametrize("value", ["true", "false", "0", "1", '"yes"', '"No"', '"on"', '"OFF"', '"t"', "1.0", "null"])
def test_truth_in_any_spelling(name: str, value: str) -> None:
    """As the engine's own models take it."""
    parse(f'{{"messages":[],"{name}":{value}}}'.encode())
