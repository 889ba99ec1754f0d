"""POST /v1/chat/completions/batch: bytes in, request out."""

import json

import msgspec
import pytest

from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_batch import PATH, ROUTE, parse
from kvguard.protocols.media import MAX_PARTS
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.prompts import ChatPrompt, PromptList
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.rewrite import rewrite

ONE = [{"role": "user", "content": "hi"}]


def batch(conversations: int = 2, **fields: object) -> InferenceRequest:
    return parse(json.dumps({"model": "m", "messages": [ONE] * conversations, **fields}).encode())


def test_a_request() -> None:
    """One prompt for each conversation, and the caps and everything else of chat."""
    request = batch(3, max_completion_tokens=50, max_tokens=70, min_tokens=5, stop=["x"], truncate_prompt_tokens=9)
    assert isinstance(request.prompt, PromptList)
    assert len(request.prompt.prompts) == 3
    assert (request.model, request.copies, request.requested_cap, request.min_tokens) == ("m", 1, 50, 5)
    assert (request.stops, request.truncate_to, request.fixed_length) == (True, 9, False)
    assert (ROUTE.path, ROUTE.errors) == (PATH, OPENAI_ERRORS)
    demand = request.demand((10, 20, 30), context_tokens=100, assumed_output_tokens=512)
    assert (demand.sequences, demand.output_cap, demand.prompts) == (3, 50, (9, 9, 9))


@pytest.mark.parametrize(("fields", "fixed"), [({}, False), ({"stream": True}, True), ({"ignore_eos": 1}, True)])
def test_it_never_streams(fields: dict[str, object], fixed: bool) -> None:
    """The engine answers in one piece whatever it is asked; what it then counts is not taken for a length."""
    request = batch(**fields)
    assert (request.stream, request.hides_usage, request.fixed_length) == (False, False, fixed)
    rewritten = rewrite(request, Degradation(), ask_usage=True)
    assert (rewritten.body, rewritten.changes) == (request.body, ())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"use_beam_search": True, "n": 2}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_the_engine_refuses(fields: dict[str, object], param: str) -> None:
    """More than one answer to a conversation, beams, and what is no batch, by name."""
    with pytest.raises(InvalidRequest) as caught:
        batch(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("fields", [{"n": None}, {"n": 1}, {"n": 1.0}, {"use_beam_search": 0}, {"min_tokens": -3}])
def test_what_it_takes(fields: dict[str, object]) -> None:
    """Values the engine reads as one answer without beams."""
    assert not batch(**fields).beams


def test_a_trim_lowers_the_cap_of_all() -> None:
    """It is one field for every conversation; the rest stays as it came."""
    body = b'{"messages":[[{"role":"user","content":"a"}],[ {"role":"user"} ]],"max_tokens":1e3, "top_p":1.00}'
    rewritten = rewrite(parse(body), Degradation(output_cap=64, cut=SequenceCut.ALL))
    assert rewritten.body == body.replace(b"1e3, ", b"64,")
    assert rewritten.changes == ("max_tokens=1000->64",)


def test_what_all_share_is_read_once() -> None:
    """The template's variables are the same object for each of 1,024 conversations."""
    many = {f"k{number}": number for number in range(1000)}
    body = json.dumps(
        {"messages": [ONE] * 1024, "reasoning_effort": "low", "chat_template_kwargs": many, "max_tokens": 5}
    ).encode()
    request = parse(body)
    assert isinstance(request.prompt, PromptList)
    chats = [prompt for prompt in request.prompt.prompts if isinstance(prompt, ChatPrompt)]
    assert len({id(chat.fields["chat_template_kwargs"]) for chat in chats}) == 1
    assert b'"reasoning_effort":"low"' in bytes(chats[0].fields["chat_template_kwargs"])


@pytest.mark.parametrize(("conversations", "ok"), [(9, True), (10, False)])
def test_what_all_share_is_bounded(conversations: int, ok: bool) -> None:
    """Its size times the conversations but one is at most 16 MiB."""
    body = {"messages": [ONE] * conversations, "chat_template": "x" * (2 * 1024 * 1024 - 2)}
    text = msgspec.json.encode(body)
    if ok:
        assert isinstance(parse(text).prompt, PromptList)
        return
    with pytest.raises(InvalidRequest, match="too large for so many conversations"):
        parse(text)


def test_pictures_of_all_conversations_are_bounded_together() -> None:
    """A thousand conversations with a picture each pass, one picture more than may be does not."""
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]
    two = [{"role": "user", "content": [picture[0]["content"][0]] * 2}]  # type: ignore[index]
    prompt = parse(msgspec.json.encode({"messages": [picture] * MAX_PARTS})).prompt
    assert isinstance(prompt, PromptList)
    assert all(isinstance(each, ChatPrompt) and len(each.media) == 1 for each in prompt.prompts)
    with pytest.raises(InvalidRequest, match="parts that are not text"):
        parse(msgspec.json.encode({"messages": [*[picture] * (MAX_PARTS - 1), two]}))
