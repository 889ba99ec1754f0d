"""Prompts nobody means well with: every one gets a clear answer, whoever counts, and leaves nothing behind."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.guard import CHAT, COMPLETIONS, Guard, guarding
from tests.kit.stub import running_stub
from tests.kit.tokenizer import write_tokenizer

pytestmark = pytest.mark.anyio

COMPLETION_BODIES: dict[str, tuple[Any, int | None]] = {
    "nothing": ("", 400),
    "no prompts": ([], 400),
    "NULs": ("\x00" * 50, 200),
    "one character": ("a" * 1_000_000, None),  # more than the cache holds, if it is counted exactly
    "no words": (" \n\t" * 100, 200),
    "control tokens": ("<|im_start|><|im_end|>" * 100, 200),
    "emoji": ("👩‍👩‍👧‍👦" * 20, 200),
    "right to left": ("שלום عليكم \u200f" * 20, 200),
    "floats": ([1.0, 2.0], 200),
    "half a token": ([1, 2.5], 400),
}
CHAT_BODIES: dict[str, tuple[Any, int | None]] = {
    "no messages": ([], 200),  # the engine says so
    "null": (None, 400),
    "a string": ("hi", 400),
    "empty content": ([{"role": "user", "content": ""}], 200),
    "null content": ([{"role": "assistant", "content": None}], 200),
    "no role": ([{"content": "hi"}], 200),
    "no object": (["hi"], 200),
    "NULs": ([{"role": "user", "content": "\x00" * 50}], 200),
    "one character": ([{"role": "user", "content": "a" * 1_000_000}], None),
    "a strange part": ([{"role": "user", "content": [{"type": "smell", "smell": "rose"}]}], 200),
    "parts of parts": ([{"role": "user", "content": [[[{}]]]}], 200),
}


async def answered(guard: Guard, route: str, body: bytes) -> int:
    answer = await guard.client.post(route, content=body)
    if answer.status_code == 400:
        assert answer.json()["error"]["code"] in ("invalid_request", "too_large")
    assert not [line for line in guard.logs if line["event"] == "fault"]
    assert guard.backend.ledger.live == 0
    return answer.status_code


@pytest.mark.parametrize("local", [True, False])
async def test_every_odd_prompt_gets_a_clear_answer(tmp_path: Path, local: bool) -> None:
    """What the engine would refuse kvguard may pass on; what it cannot read it refuses itself, and never with a 500."""
    tokens = {"tokenizer": write_tokenizer(tmp_path)} if local else {}
    async with running_stub() as stub, guarding(stub, tokens=tokens) as guard:
        for name, (prompt, status) in COMPLETION_BODIES.items():
            body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 1}).encode()
            assert await answered(guard, COMPLETIONS, body) in ((200, 400) if status is None else (status,)), name
        for name, (messages, status) in CHAT_BODIES.items():
            body = json.dumps({"model": "tiny", "messages": messages, "max_tokens": 1}).encode()
            assert await answered(guard, CHAT, body) in ((200, 400) if status is None else (status,)), name


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
async def test_a_lone_surrogate_is_no_text(tmp_path: Path, local: bool, route: str) -> None:
    """Half a character, which the engine refuses: refused here or passed on, but never an error of kvguard's own."""
    tokens = {"tokenizer": write_tokenizer(tmp_path)} if local else {}
    text = b'"\\ud800 half"'
    bodies = {COMPLETIONS: b'{"prompt": %s}', CHAT: b'{"messages": [{"role": "user", "content": %s}]}'}
    async with running_stub() as stub, guarding(stub, tokens=tokens) as guard:
        assert await answered(guard, route, bodies[route] % text) in (200, 400)


async def test_a_key_that_is_not_utf_8() -> None:
    """Refused by the field it is in, on the traffic port as in an explanation."""
    body = b'{"max_tokens":1,"messages":[{"role":"assistant","content":"x","reasoning_content":"a","\xff":1}]}'
    async with running_stub() as stub, guarding(stub) as guard:
        assert await answered(guard, CHAT, body) == 400
        explained = await guard.admin.post("/debug/explain", content=body)
        assert (explained.status_code, explained.json()["error"]["param"]) == (400, "messages")
        assert not [line for line in guard.logs if line["event"] == "fault"]


@pytest.mark.parametrize("name", [b"\xff", b"\\ud800", b"\\q"])
@pytest.mark.parametrize(("route", "rest"), [(COMPLETIONS, b'"prompt":"a"'), (CHAT, b'"messages":[]')])
async def test_a_model_that_is_no_text(route: str, rest: bytes, name: bytes) -> None:
    """Its name is read with the rest of the body, so that it is refused like any other field."""
    body = b'{"model":"%s",%s}' % (name, rest)
    async with running_stub() as stub, guarding(stub) as guard:
        assert await answered(guard, route, body) == 400
        explained = await guard.admin.post("/debug/explain", content=body)
        assert explained.status_code == 400
