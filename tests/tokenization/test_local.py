"""A model's own tokenizer and chat template, on a small one trained here."""

import asyncio
import json
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from kvguard.errors import SettingsError
from kvguard.tokenization import local
from kvguard.tokenization.counter import CountFailed
from kvguard.tokenization.local import MAX_LONG_OPEN, MAX_OPEN, LocalCounter, load_local_counter
from kvguard.tokenization.rendering import ChatTemplates
from tests.tokenization.small import chat, tokens, trained, write

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tokenizer"))


async def test_text_is_counted_with_the_special_tokens_the_tokenizer_adds(directory: Path) -> None:
    """Counts equal the tokenizer's own, for unicode, empty, long and control-token text too."""
    texts = ("the tokenizer", "", "héllo 世界 🎉\x00", "def f(x):\n\treturn x", "a" * 100_000, "<s><|im_end|> <s")
    expected = [len(trained().encode(text).ids) for text in texts]
    counter = load_local_counter(directory)
    assert list(await counter.count_text(texts, {})) == expected
    assert [(await counter.count_text((text,), {}))[0] for text in texts] == expected


async def test_a_completion_may_do_without_special_tokens(directory: Path) -> None:
    """With `add_special_tokens` switched off the tokenizer's own are left out."""
    off = {"add_special_tokens": msgspec.Raw(b"false")}
    expected = len(trained().encode("the tokenizer", add_special_tokens=False).ids)
    assert await load_local_counter(directory).count_text(("the tokenizer",), off) == (expected,)


async def test_chat_is_counted_as_the_template_renders_it(directory: Path) -> None:
    """System text, tools, text parts and the generation prompt are all in the count, and no special token twice."""
    counter = load_local_counter(directory / "tokenizer.json")
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    dumped = [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}]
    text = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n" + json.dumps(dumped)
    full = text + "<|im_start|>assistant\n"
    asked = {"messages": messages, "tools": tools}
    assert await counter.count_chats((chat(**asked, add_generation_prompt=False),), {}) == (tokens(text),)
    assert await counter.count_chats((chat(**asked),), {}) == (tokens(full),)
    assert await counter.count_chats((chat(**asked, add_special_tokens=True),), {}) == (tokens(full) + 1,)


@pytest.mark.parametrize("size", [1, 50_000])
async def test_what_the_engine_refuses_or_expands_is_a_failed_count(directory: Path, size: int) -> None:
    """A lone surrogate and a picture are left to the next counter, from the loop and from a thread."""
    counter = load_local_counter(directory)
    with pytest.raises(CountFailed, match="surrogate"):
        await counter.count_text(("a" * size + "\ud800",), {})
    picture = [{"type": "image_url", "image_url": {"url": "data:" + "a" * size}}]
    with pytest.raises(CountFailed, match="not text"):
        await counter.count_chats((chat(messages=[{"role": "user", "content": picture}]),), {})


async def test_without_a_template_only_text_is_counted(tmp_path: Path) -> None:
    """A tokenizer alone counts completions and leaves chat to the next counter."""
    trained().save(str(tmp_path / "tokenizer.json"))
    counter = load_local_counter(tmp_path)
    assert await counter.count_text(("a",), {}) == (2,)
    with pytest.raises(CountFailed, match="no chat template"):
        await counter.count_chats((chat(messages=[{"role": "user", "content": "a"}]),), {})


class Threads:
    """Counts in place of the segments, says in which thread."""

    def count(self, texts: list[str], *, special: bool) -> tuple[int, ...]:
        self.name = threading.current_thread().name
        return (1,)


@pytest.mark.parametrize(
    ("size", "thread"),
    [
        (local.INLINE_CHARACTERS, "MainThread"),
        (local.INLINE_CHARACTERS + 1, "tokenize_"),
        (local.LONG_CHARACTERS, "tokenize_"),
        (local.LONG_CHARACTERS + 1, "tokenize-long"),
    ],
)
async def test_a_prompt_waits_only_for_prompts_of_its_size(size: int, thread: str) -> None:
    """Small texts are counted in place, long ones in a thread of their own."""
    segments = Threads()
    counter = LocalCounter(segments, None)
    await counter.count_text(("a" * size,), {})
    assert segments.name.startswith(thread)
    counter.close()


async def test_many_small_conversations_are_one_piece_of_work(directory: Path) -> None:
    """They are counted in a thread like one of their size, each as it would be alone."""
    counter = load_local_counter(directory)
    chats = tuple(chat(messages=[{"role": "user", "content": "a" * size}]) for size in range(1, 60))
    alone = [(await counter.count_chats((one,), {}))[0] for one in chats]
    together = asyncio.ensure_future(counter.count_chats(chats, {}))
    done, _ = await asyncio.wait({together}, timeout=0)
    assert not done
    assert await together == tuple(alone)
    assert await counter.count_chats((), {}) == ()


async def test_small_prompts_pass_a_giant_one(directory: Path) -> None:
    """A text that takes long does not hold up the ones that come after it."""
    counter = load_local_counter(directory)
    giant = asyncio.ensure_future(counter.count_text((" the words" * 400_000,), {}))
    assert await counter.count_text(("the words " * 100,), {}) == (len(trained().encode("the words " * 100).ids),)
    assert not giant.done()
    assert (await giant)[0] > 100_000


@pytest.mark.parametrize("content", [None, "{", '{"model": 1}'])
def test_a_broken_tokenizer_is_a_fault_of_the_settings(tmp_path: Path, content: str | None) -> None:
    """A missing or unreadable file is named."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SettingsError, match=r"tokenizer\.json"):
        load_local_counter(tmp_path)


def test_a_missing_extra_is_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tokenizers library the operator learns what to install."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SettingsError, match=r"kvguard\[tokenizer\]"):
        load_local_counter(directory)


class Held:
    """Counts only once it is let go."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def count(self, texts: tuple[str, ...], *, special: bool) -> tuple[int, ...]:
        self.released.wait()
        return tuple(map(len, texts))


@pytest.mark.parametrize(("size", "most"), [(1_000, MAX_OPEN), (200_000, MAX_LONG_OPEN)])
async def test_who_would_wait_behind_too_many_is_told_at_once(size: int, most: int) -> None:
    """So many prompts of a size are counted or wait; one more fails, and once they are through it is counted."""
    held = Held()
    counter = LocalCounter(held, ChatTemplates(plain=None, with_tools=None))
    try:
        counts = [asyncio.ensure_future(counter.count_text(("a" * size,), {})) for _ in range(most)]
        await asyncio.wait(counts, timeout=0)
        with pytest.raises(CountFailed, match=f"{most} prompts"):
            await counter.count_text(("a" * size,), {})
        held.released.set()
        assert await asyncio.gather(*counts) == [(size,)] * most
        assert await counter.count_text(("a" * size,), {}) == (size,)
    finally:
        held.released.set()
        counter.close()
