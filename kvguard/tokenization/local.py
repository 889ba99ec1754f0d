"""Counting with the model's own tokenizer.json and chat template, in threads. Needs the `tokenizer` extra.

`encode_batch_fast` is used because plain `encode` holds the interpreter lock for the whole text.
"""

import asyncio
import datetime
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvguard.errors import SettingsError
from kvguard.protocols.fields import Fields
from kvguard.tokenization.counter import CountFailed, CountSource

if TYPE_CHECKING:
    import jinja2
    from tokenizers import Tokenizer

THREADS = 2


class LocalCounter:
    """A tokenizer directory: `tokenizer.json`, and for chat `chat_template.jinja` or `tokenizer_config.json`."""

    source = CountSource.LOCAL

    def __init__(self, tokenizer: "Tokenizer", template: "ChatTemplate | None") -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        """Tokens of each text with the special tokens the tokenizer adds."""
        return await self._run(self._encode, list(texts), True)

    async def count_chat(self, chat: Fields, model: Fields) -> int:
        """Tokens of the rendered conversation; the template writes its own special tokens."""
        return (await self._run(self._render_and_encode, chat))[0]

    async def _run(self, work: Any, *arguments: object) -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        counts: tuple[int, ...] = await loop.run_in_executor(self._threads, work, *arguments)
        return counts

    def _encode(self, texts: list[str], special: bool) -> tuple[int, ...]:
        # The tokenizer cannot take lone surrogates; the engine replaces them too.
        texts = [text.encode(errors="replace").decode() for text in texts]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        return tuple(len(encoding) for encoding in encodings)

    def _render_and_encode(self, chat: Fields) -> tuple[int, ...]:
        if self._template is None:
            raise CountFailed("the tokenizer directory has no chat template")
        if "kv_transfer_params" in chat or "chat_template" in chat:
            raise CountFailed("the request replaces its own prompt")
        try:
            values = {name: msgspec.json.decode(raw) for name, raw in chat.items()}
            text = self._template.render(values)
        except Exception as error:  # a template is a foreign program: whatever it raises is a failed count
            raise CountFailed(f"chat template: {type(error).__name__}") from error
        return self._encode([text], values.get("add_special_tokens") is True)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class ChatTemplate:
    """A model's chat template in an immutable sandbox, with the helpers templates expect."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template: jinja2.Template = environment.from_string(source)
        self._special_tokens = special_tokens

    def render(self, values: dict[str, Any]) -> str:
        """The prompt text. Raises CountFailed, or whatever a template raises on values it did not expect."""
        extra = values.get("chat_template_kwargs") or {}
        variables = {
            **self._special_tokens,
            "messages": [_flattened(message) for message in values["messages"]],
            "tools": values.get("tools"),
            "documents": values.get("documents"),
            "add_generation_prompt": values.get("add_generation_prompt", True),
            **extra,
        }
        if values.get("continue_final_message"):
            raise CountFailed("continuing a final message is left to the engine")
        return self._template.render(**variables)


def _flattened(message: Any) -> Any:
    """A message with its text parts joined, as engines do for templates that print `content`."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    parts = message["content"]
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise CountFailed("a message part is not text")
    return {**message, "content": "\n".join(part["text"] for part in parts)}


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise ValueError(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().astimezone().strftime(layout)  # noqa: TID251  templates print today's date


def load_local_counter(path: Path) -> LocalCounter:
    """Read a tokenizer directory or file. Raises SettingsError with what is wrong with it."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SettingsError(["tokens.tokenizer needs the extra: pip install 'kvguard[tokenizer]'"]) from None
    directory, file = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
    if not file.is_file():
        raise SettingsError([f"tokens.tokenizer: no such file: {file}"])
    try:
        tokenizer = Tokenizer.from_file(str(file))
        return LocalCounter(tokenizer, _load_template(directory))
    except Exception as error:  # the tokenizers library raises bare Exception for any fault of the file
        raise SettingsError([f"tokens.tokenizer: {file} cannot be read: {error}"]) from error


def _load_template(directory: Path) -> ChatTemplate | None:
    file = directory / "tokenizer_config.json"
    config: dict[str, Any] = msgspec.json.decode(file.read_bytes()) if file.is_file() else {}
    separate = directory / "chat_template.jinja"
    source = separate.read_text() if separate.is_file() else config.get("chat_template")
    if not isinstance(source, str):
        return None
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    return ChatTemplate(source, {name: _token_text(config[name]) for name in names if config.get(name)})


def _token_text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)
