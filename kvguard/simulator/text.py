"""The toy language: a lossless tokenizer, a chat template and the words a sequence answers with.

Everything is a pure function of its arguments. Every output word is one token of the tokenizer, so an answer sent back
as the next prompt counts as many tokens as it was generated with.
"""

import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

VOCABULARY_SIZE = 32_000
SPECIAL_TOKENS = 16
END_OF_MESSAGE = 1
ASSISTANT = 2
TOOLS = 3
OTHER_ROLE = 8
ROLES = {"system": 4, "user": 5, "assistant": ASSISTANT, "tool": 6, "developer": 7}

_PIECE = re.compile(r"\s?\w{1,4}|\s?[^\w\s]{1,4}|\s{1,4}")
_WORDS = (
    *(" the", " a", " of", " to", " in", " is", " it", " on", " as", " by", " at", " or", " and", " for", " with"),
    *(
        " from",
        " one",
        " two",
        " more",
        " less",
        " load",
        " full",
        " free",
        " page",
        " slot",
        " step",
        " time",
        " wait",
    ),
    *(" fast", " slow", " good", " new", " old", " big", " part", " next", " last", " same", ",", ".", ";"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message as the template sees it; `extra` is the JSON of whatever else is rendered, such as tool calls."""

    role: str
    content: str
    extra: str = ""


def pieces(text: str) -> list[str]:
    """Pieces of up to four letters, marks or blanks, a word with the blank before it; joined they are the text."""
    return _PIECE.findall(text)


def token_ids(text: str) -> list[int]:
    return [_token_id(piece) for piece in pieces(text)]


def chat_token_ids(
    messages: Iterable[ChatMessage], tools: Sequence[object] = (), *, add_generation_prompt: bool = True
) -> list[int]:
    """Tokens of the toy template: tools first, then role, content and end mark of each message, then the opening."""
    ids: list[int] = []
    if tools:
        ids += [TOOLS, *token_ids(compact_json(tools)), END_OF_MESSAGE]
    for message in messages:
        ids += [ROLES.get(message.role, OTHER_ROLE), *token_ids(message.content + message.extra), END_OF_MESSAGE]
    if add_generation_prompt:
        ids.append(ASSISTANT)
    return ids


def output_word(position: int, choice: int = 0) -> str:
    """The text of a sequence's token at `position`; choices of one request read differently."""
    return _WORDS[(position * 7 + choice * 11) % len(_WORDS)]


def compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _token_id(piece: str) -> int:
    digest = zlib.crc32(piece.encode("utf-8", "surrogatepass"))
    return SPECIAL_TOKENS + digest % (VOCABULARY_SIZE - SPECIAL_TOKENS)
