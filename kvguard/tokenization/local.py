"""Counting with the model's own tokenizer.json and chat template. Needs the `tokenizer` extra.

Small prompts are counted where they stand, since going to a thread and back costs as much; the others in threads, long
ones in a thread of their own, so that no prompt waits for one much longer than itself.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from kvguard.errors import SettingsError
from kvguard.protocols.fields import Fields
from kvguard.tokenization.counter import CountFailed, CountSource

if TYPE_CHECKING:
    from kvguard.tokenization.rendering import ChatTemplates
    from kvguard.tokenization.segments import SegmentCounter

THREADS = 2
LONG_THREADS = 1
INLINE_CHARACTERS = 400
LONG_CHARACTERS = 100_000
MAX_OPEN = 128
MAX_LONG_OPEN = 8


class _Lane:
    """Threads for prompts of like size; who would wait behind too many others is told so at once."""

    def __init__(self, name: str, *, threads: int, most_open: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most_open = most_open
        self._open = 0

    async def run(self, work: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        if self._open >= self._most_open:
            raise CountFailed(f"{self._open} prompts are being counted")
        self._open += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._open -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class LocalCounter:
    """A tokenizer directory: `tokenizer.json`, and for chat a template in any of the places transformers looks."""

    source = CountSource.LOCAL

    def __init__(self, segments: "SegmentCounter", templates: "ChatTemplates") -> None:
        self._segments = segments
        self._templates = templates
        self._short = _Lane("tokenize", threads=THREADS, most_open=MAX_OPEN)
        self._long = _Lane("tokenize-long", threads=LONG_THREADS, most_open=MAX_LONG_OPEN)

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each text, with the special tokens the tokenizer adds unless the request wants none."""
        special = bytes(model.get("add_special_tokens", b"true")) != b"false"
        return await self._run(sum(map(len, texts)), lambda: self._count(texts, special=special))

    async def count_chats(self, chats: tuple[Fields, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each rendered conversation; the template writes its own special tokens."""
        size = sum(len(memoryview(raw)) for chat in chats for raw in chat.values())
        return await self._run(size, lambda: tuple(self._render_and_count(chat) for chat in chats))

    async def _run(self, size: int, work: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        if size <= INLINE_CHARACTERS:
            return work()
        lane = self._short if size <= LONG_CHARACTERS else self._long
        return await lane.run(work)

    def _render_and_count(self, chat: Fields) -> int:
        from kvguard.tokenization.rendering import special_tokens_asked

        [tokens] = self._count((self._templates.render(chat),), special=special_tokens_asked(chat))
        return tokens

    def _count(self, texts: tuple[str, ...], *, special: bool) -> tuple[int, ...]:
        try:
            return self._segments.count(texts, special=special)
        except UnicodeEncodeError:
            raise CountFailed("a lone surrogate, which the engine refuses") from None

    def close(self) -> None:
        """End the threads."""
        self._short.close()
        self._long.close()


def load_local_counter(path: Path) -> LocalCounter:
    """Read a tokenizer directory or file. Raises SettingsError with what is wrong with it."""
    directory, file = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
    if not file.is_file():
        raise SettingsError([f"tokens.tokenizer: no such file: {file}"])
    try:
        return _load(directory, file)
    except ImportError:
        raise SettingsError(["tokens.tokenizer needs the extra: pip install 'kvguard[tokenizer]'"]) from None
    except Exception as error:  # the tokenizers library raises bare Exception for any fault of the file
        raise SettingsError([f"tokens.tokenizer: {file} cannot be read: {error}"]) from error


def _load(directory: Path, file: Path) -> LocalCounter:
    from kvguard.tokenization.directory import read_config, read_templates, read_tokenizer, special_texts
    from kvguard.tokenization.segments import SegmentCounter, safe_boundaries

    config = read_config(directory)
    tokenizer = read_tokenizer(file, config)
    templates = read_templates(directory, config)
    sources = [template.source for template in (templates.plain, templates.with_tools) if template]
    boundaries = safe_boundaries(tokenizer, "\n".join([*sources, *special_texts(config).values()]))
    return LocalCounter(SegmentCounter(tokenizer, boundaries), templates)
