"""Marks along the beginning of a prompt: which requests have them, and which have the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.policy import DegradePolicy
from kvguard.protocols.prefix import MARKED_BYTES, TextMark, prefix_of
from kvguard.protocols.routes import VLLM
from kvguard.protocols.tgi_routes import TGI
from kvguard.proxy.candidate import marked
from tests.kit.dialects import MESSAGES, RESPONSES
from tests.kit.guard import CHAT, COMPLETIONS
from tests.kit.properties import deterministic

GENERATE = "/inference/v1/generate"
SYSTEM = "You are a careful clerk. " * 100
IDS = [12345] * 400


def marks(path: str, **body: Any) -> tuple[TextMark, ...]:
    route = VLLM.generating[path]
    return prefix_of(marked(route.parse(json.dumps(body).encode()), route, [], DegradePolicy()))


def chat(*texts: str, **fields: Any) -> tuple[TextMark, ...]:
    """A system text and what users and the model said, in turn."""
    roles = ("system", *("user", "assistant") * len(texts))
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return marks(CHAT, **{"model": "tiny", "messages": messages, **fields})


def hashes(found: tuple[TextMark, ...]) -> list[int]:
    return [mark.hash for mark in found]


ALIKE = chat(SYSTEM, "hello")


def test_a_mark_has_its_place() -> None:
    """Two strides of the conversation's own bytes; what else the template may print counts as behind."""
    assert [mark.bytes for mark in ALIKE] == [1024, 2048]
    size = len(json.dumps([{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hello"}]))
    assert [mark.behind_bytes for mark in ALIKE] == [size - 1024, size - 2048]
    beside = len(b'{"documents":["x"]}')
    assert chat(SYSTEM, "hello", documents=["x"])[0].behind_bytes == size - 1024 + beside


@pytest.mark.parametrize(
    ("characters", "places"),
    [
        (1022, []),
        (1023, [1024]),
        (20 * 1024 - 2, list(range(1024, 16 * 1024 + 1, 1024))),
        (20 * 1024 - 1, [*range(1024, 16 * 1024 + 1, 1024), 20 * 1024]),
    ],
)
def test_strides_are_whole(characters: int, places: list[int]) -> None:
    """A mark is where a whole stride ends before the end of the text; of its quotes only the first counts."""
    found = marks(COMPLETIONS, model="tiny", prompt="x" * characters)
    assert [mark.bytes for mark in found] == places


def test_of_a_long_prompt_only_the_beginning_has_marks() -> None:
    """Forty of them, the last at 256 KiB, however much comes after it."""
    found = marks(COMPLETIONS, model="tiny", prompt="x" * 1_000_000)
    assert (len(found), found[-1].bytes, found[-1].behind_bytes) == (40, MARKED_BYTES, 1_000_002 - MARKED_BYTES)
    assert (found[16].bytes - found[15].bytes, found[28].bytes - found[27].bytes) == (4096, 16384)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 5, "temperature": 0, "user": "x", "n": 3, "stream": True},
        {"cache_salt": None, "echo": False, "prompt_logprobs": None, "tool_choice": None},
    ],
)
def test_what_does_not_reach_the_prompt_leaves_its_marks(fields: dict[str, Any]) -> None:
    """Sampling, copies and streaming do not decide what is in the cache, nor does a field with null."""
    assert chat(SYSTEM, "good bye", **fields)[0].hash == ALIKE[0].hash


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "adapter"},
        {"cache_salt": "s"},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "none"},
        {"response_format": {"type": "json_object"}},
        {"chat_template": "x"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"documents": ["x"]},
        {"add_special_tokens": True},
        {"add_generation_prompt": False},
        {"messages": [{"content": SYSTEM, "role": "system"}]},
        {"messages": [{"role": "user", "content": SYSTEM}]},
        {"messages": [{"role": "system", "content": "\u00e9" + SYSTEM}]},
    ],
)
def test_what_decides_over_sharing_changes_every_mark(fields: dict[str, Any]) -> None:
    """Another model, salt, template, tools, role or text: not one mark in common."""
    other = chat(SYSTEM, "hello", **fields)
    assert len(other) >= 2
    assert not set(hashes(other)) & set(hashes(ALIKE))


def test_texts_that_part_have_the_marks_before_it_in_common() -> None:
    """Only those behind the first difference are others."""
    parted = hashes(chat(SYSTEM[:1500] + "X" + SYSTEM[1501:], "hello"))
    assert parted[0] == ALIKE[0].hash
    assert parted[1] != ALIKE[1].hash


@deterministic
@given(st.lists(st.text(max_size=3000), min_size=1, max_size=4), st.lists(st.text(max_size=2000), max_size=3))
def test_a_conversation_that_goes_on_keeps_its_marks(before: list[str], after: list[str]) -> None:
    """The marks of a prompt are the first of those of any that extends it."""
    shorter, longer = hashes(chat(*before)), hashes(chat(*before, *after))
    assert longer[: len(shorter)] == shorter


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        (COMPLETIONS, {"prompt": SYSTEM}, 2),
        (COMPLETIONS, {"prompt": [SYSTEM]}, 2),
        (COMPLETIONS, {"prompt": IDS}, 2),
        (COMPLETIONS, {"prompt": [IDS]}, 2),
        (GENERATE, {"token_ids": IDS, "prompt": SYSTEM, "sampling_params": {}}, 2),
        (MESSAGES, {"system": SYSTEM, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}, 2),
        (RESPONSES, {"instructions": SYSTEM, "input": "hi"}, 2),
        ("/invocations", {"prompt": SYSTEM}, 2),
        # Several prompts.
        (COMPLETIONS, {"prompt": [SYSTEM, SYSTEM]}, 0),
        (COMPLETIONS, {"prompt": [IDS, IDS]}, 0),
        ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": SYSTEM}]]}, 0),
        # What is cut, put together otherwise, or not all here.
        (COMPLETIONS, {"prompt": SYSTEM, "truncate_prompt_tokens": 10}, 0),
        (COMPLETIONS, {"prompt": SYSTEM, "suffix": "x"}, 0),
        (RESPONSES, {"instructions": SYSTEM, "input": "hi", "previous_response_id": "r"}, 0),
        (RESPONSES, {"instructions": SYSTEM, "input": "hi", "tools": [{"type": "mcp"}]}, 0),
        (CHAT, {"messages": [], "kv_transfer_params": {"prompt_token_ids": IDS}}, 0),
        (COMPLETIONS, {"prompt": SYSTEM, "kv_transfer_params": {}}, 0),
        (GENERATE, {"token_ids": IDS, "sampling_params": {}, "features": {"mm_hashes": {}}}, 0),
        # The cache is not looked into.
        (COMPLETIONS, {"prompt": SYSTEM, "prompt_logprobs": 0}, 0),
        (COMPLETIONS, {"prompt": SYSTEM, "echo": True}, 0),
        (GENERATE, {"token_ids": IDS, "sampling_params": {"prompt_logprobs": 0}}, 0),
        (GENERATE, {"token_ids": IDS, "sampling_params": {"skip_reading_prefix_cache": True}}, 0),
        # Nothing is generated.
        ("/v1/embeddings", {"input": SYSTEM}, 0),
        ("/pooling", {"input": IDS}, 0),
        # Pictures.
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "text": SYSTEM}]}]}, 0),
        (GENERATE, {"token_ids": IDS, "sampling_params": {}, "content_parts": [{"type": "image_url", "url": "x"}]}, 0),
        (CHAT, {"messages": [{"role": "user", "content": SYSTEM}], "mm_payload": {}}, 0),
        # More beside the text than is looked at.
        (CHAT, {"messages": [{"role": "user", "content": SYSTEM}], "chat_template": "x" * MARKED_BYTES}, 0),
    ],
)
def test_only_one_prompt_that_reads_the_cache_has_marks(path: str, body: dict[str, Any], count: int) -> None:
    """Of text or ids, whole and as it came."""
    assert len(marks(path, model="tiny", **body)) == count


def test_routes_are_told_apart() -> None:
    """The same conversation may be another prompt there."""
    messages = [{"role": "user", "content": SYSTEM}]
    on_chat, on_invocations = (marks(path, model="tiny", messages=messages) for path in (CHAT, "/invocations"))
    assert [mark.bytes for mark in on_chat] == [mark.bytes for mark in on_invocations]
    assert on_chat[0].hash != on_invocations[0].hash


def test_requests_to_tgi_have_no_marks() -> None:
    """Whatever it finds in its cache, it reserves for the whole prompt."""
    body = json.dumps({"inputs": SYSTEM, "token_ids": IDS, "prompt": SYSTEM}).encode()
    assert prefix_of(TGI.generating["/generate"].parse(body)) == ()
    assert prefix_of(TGI.generating[COMPLETIONS].parse(body)) == ()


@pytest.mark.parametrize(
    ("before", "behind", "prompt_tokens", "tokens"),
    [
        (16_384, 0, 4000, 3968),
        (16_384, 1000, 4300, 3805),
        (1024, 1024, 1000, 320),
        (1024, 1_000_000, 200_000, 102),
        (1024, 1024, 0, 0),
    ],
)
def test_tokens_before_a_mark_are_its_part_with_a_margin(
    before: int, behind: int, prompt_tokens: int, tokens: int
) -> None:
    """A byte behind the mark weighs as two before it, and the end of a template as 64 more."""
    assert TextMark(1, before, behind).tokens(prompt_tokens) == tokens


@pytest.mark.parametrize(("field", "path"), [("prompt", COMPLETIONS), ("token_ids", GENERATE)])
def test_ids_before_a_mark_are_counted(field: str, path: str) -> None:
    """One that the mark cuts is not before it; how many there are in all does not matter."""
    found = marks(path, **{"model": "tiny", field: IDS, "sampling_params": {}})
    assert [(mark.bytes, mark.tokens(len(IDS))) for mark in found] == [(1024, 146), (2048, 292)]
