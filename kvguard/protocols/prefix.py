"""Marks along the beginning of a prompt: requests with a mark in common have everything before it in common.

Each mark is a hash of the prompt up to there and of all else that decides whether an engine's prefix cache finds the
one's blocks for the other: model, salt, tools and whatever else the chat template may look at. The hash is a
cryptographic one, because who could make many prompts of one mark would be counted for a fraction of what they hold.
The client's own bytes are hashed, so a text that is escaped in another way is another prompt; nothing is decoded, and
only the first MARKED_BYTES of a prompt are looked at; one with as much beside it has no marks.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from kvguard.protocols.fields import Fields, is_set
from kvguard.protocols.prompts import ChatPrompt, TextPrompts, TokenPrompts
from kvguard.protocols.request import Copies, InferenceRequest

DIGEST_BYTES: Final = 16
# From the start of the prompt on: so many strides of so many bytes.
_STRIDES: Final = ((16, 1024), (12, 4096), (12, 16384))
MARKED_BYTES: Final = sum(number * size for number, size in _STRIDES)

# The salt goes into every block's hash; the others are printed by a few templates.
_ALSO_SAME: Final = ("cache_salt", "tool_choice", "response_format")
# What brings ids or media into a prompt that its text does not show, or a text that need not come first in it.
_CHANGED_BY: Final = ("kv_transfer_params", "mm_payload", "features", "suffix")
# What keeps the engine from looking into its cache.
_UNREAD_WITH: Final = ("prompt_logprobs", "skip_reading_prefix_cache")
_OFF: Final = (b"false", b"null")

# Tokens per byte behind a mark are at most so many times those before it: prose takes four or five bytes for one,
# source text and numbers two or three.
_DENSER: Final = 2
# What a template puts behind the last message, and a token that a mark cuts, in bytes of prompt.
_BEHIND_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class TextMark:
    """A place in a prompt: the hash of all before it, the bytes before and behind it, and in a prompt of ids how many
    whole ones are before it.
    """

    hash: int
    bytes: int
    behind_bytes: int
    ids: int | None = None

    def tokens(self, prompt_tokens: int) -> int:
        """How many tokens are before it at least, of a prompt of so many.

        Nobody knows where in a text they are: it is taken to be twice as dense behind the mark as before it, and
        tools, which may be printed anywhere, to be behind. Where that is too little, the engine's gauge shows it.
        """
        if self.ids is not None:
            return self.ids
        return prompt_tokens * self.bytes // (self.bytes + _DENSER * (self.behind_bytes + _BEHIND_BYTES))


def prefix_of(request: InferenceRequest) -> tuple[TextMark, ...]:
    """The marks of a request with one prompt of text or ids; none where it may not share what is in the cache."""
    text = _text_of(request)
    if text is None or not _shares(request):
        return ()
    beside, rest = _beside(request), _rest(request)
    size = _size(beside)
    if size + _size(rest) > MARKED_BYTES:
        return ()
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, value in sorted((beside | rest).items()):
        hasher.update(b"%s %d " % (name.encode(), len(memoryview(value))))
        hasher.update(value)
    of_ids, whole = isinstance(request.prompt, TokenPrompts), memoryview(text)
    return tuple(_marks(hasher, whole[:-1], size + len(whole), of_ids=of_ids))


def _size(fields: Fields) -> int:
    return sum(len(memoryview(value)) for value in fields.values())


def _marks(hasher: "hashlib.blake2b", text: memoryview, size: int, *, of_ids: bool) -> Iterator[TextMark]:
    """One behind every whole stride of the text, in a prompt that has `size` bytes in all."""
    place = ids = 0
    for number, stride in _STRIDES:
        for _ in range(min(number, (len(text) - place) // stride)):
            part = bytes(text[place : place + stride])
            hasher.update(part)
            place, ids = place + stride, ids + part.count(b",")
            digest = int.from_bytes(hasher.copy().digest(), "big")
            yield TextMark(digest, place, size - place, ids if of_ids else None)


def _text_of(request: InferenceRequest) -> msgspec.Raw | None:
    """What the prompt begins with, as a JSON list or string; None where it is several, or has media in it."""
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt):
        return None if prompt.media else prompt.fields.get("messages")
    if isinstance(prompt, TextPrompts):
        return request.fields.get("prompt") if len(prompt.texts) == 1 else None
    if not isinstance(prompt, TokenPrompts) or len(prompt.lengths) > 1 or prompt.media:
        return None
    return request.fields.get("prompt" if request.inside is None else "token_ids")


def _shares(request: InferenceRequest) -> bool:
    """Whether the engine looks into its cache for this prompt, whole and as it is."""
    if request.copied_by is not Copies.N:  # TGI reserves for every prompt in full
        return False
    if not request.caps.names or not request.names_whole_prompt or request.truncate_to is not None:
        return False
    if any(is_set(request.fields, name) for name in _CHANGED_BY):
        return False
    if any(is_set(fields, name) for fields in (request.fields, request.params) for name in _UNREAD_WITH):
        return False
    # Beside `logprobs` an echo asks for those of the prompt.
    return "echo" not in request.fields or bytes(request.fields["echo"]) in _OFF


def _beside(request: InferenceRequest) -> Fields:
    """What else the chat template may print."""
    prompt = request.prompt
    return {n: v for n, v in prompt.fields.items() if n != "messages"} if isinstance(prompt, ChatPrompt) else {}


def _rest(request: InferenceRequest) -> Fields:
    """Whatever else must be the same for prompts that begin alike to be one in the cache, by names no field has."""
    same = {f"field {name}": request.fields[name] for name in _ALSO_SAME if is_set(request.fields, name)}
    return same | {
        "of kind": msgspec.Raw(type(request.prompt).__name__.encode()),
        "on route": msgspec.Raw(request.route.encode()),
        "for model": msgspec.Raw((request.model or "").encode(errors="surrogatepass")),
        "with special tokens": msgspec.Raw(b"1" if request.special_tokens else b"0"),
    }
