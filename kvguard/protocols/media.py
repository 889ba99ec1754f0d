"""Pictures, recordings and files in a request: what they are, and the request without their bytes.

Reads chat, Anthropic, Responses and TGI forms. Payloads are never decoded, fetched or turned into text; at most
`picture_size.PEEK_CHARACTERS` of each are looked at. Everything else stays the client's own bytes.
"""

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from kvguard.protocols.fields import Fields
from kvguard.protocols.picture_size import PEEK_CHARACTERS, peek, picture_size, wav_seconds

_MAX_DEPTH = 8
# Fields of a request that may lead to media, and the keys that lead on inside them; `_PARTS` hold parts themselves.
_FIELDS = ("system", "messages", "input", "instances", "content_parts")
_LISTS = ("messages", "content", "output")
_PARTS = frozenset({"content", "output", "content_parts"})
TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
_MARKDOWN = re.compile(r"!\[\]\(([^)]*)\)")

_URL = re.compile(rb"[a-z]{1,8}:")
_MAX_PREFIX = 256  # "data:image/png;base64,"
_MAX_WORD = 256  # the longest value of `type` or `detail` that is read

_list = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(Fields)


class MediaKind(enum.Enum):
    """What a part is, as far as tokens go."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPart:
    """One part that is not text. Sizes are those the payload itself states, None when it is elsewhere or says nothing.

    `detail` is the client's word and binds no engine. `payload_bytes` is 0 for a part that is fetched.
    """

    kind: MediaKind
    width: int | None = None
    height: int | None = None
    seconds: float | None = None
    detail: str | None = None
    payload_bytes: int = 0


# A part is what its type says; without a known type, what the first of these keys in it says.
_KINDS = {
    "image_url": MediaKind.IMAGE,
    "input_image": MediaKind.IMAGE,
    "image": MediaKind.IMAGE,
    "image_pil": MediaKind.IMAGE,
    "image_embeds": MediaKind.IMAGE,
    "input_audio": MediaKind.AUDIO,
    "audio_url": MediaKind.AUDIO,
    "audio": MediaKind.AUDIO,
    "audio_embeds": MediaKind.AUDIO,
    "video_url": MediaKind.VIDEO,
    "video": MediaKind.VIDEO,
    "video_embeds": MediaKind.VIDEO,
    "input_video": MediaKind.VIDEO,
    "document": MediaKind.FILE,
    "file": MediaKind.FILE,
    "input_file": MediaKind.FILE,
    "prompt_embeds": MediaKind.FILE,
}
# Where a part, or the object inside it, keeps its payload.
_PAYLOADS = frozenset({*_KINDS, "source", "url", "data", "file_data"})


def media_parts(fields: Fields) -> tuple[MediaPart, ...]:
    """Every part that is not text, in order. Malformed JSON has none."""
    return tuple(part for name in _FIELDS if name in fields for part in _parts(name, fields[name], _MAX_DEPTH))


def without_payloads(fields: Fields) -> Fields:
    """The fields with each such part replaced by a text part that names its kind; the same object without any."""
    replaced = {name: _stripped(name, fields[name], _MAX_DEPTH) for name in _FIELDS if name in fields}
    return {**fields, **replaced} if any(replaced[name] is not fields[name] for name in replaced) else fields


def markdown_media(text: str) -> tuple[str, tuple[MediaPart, ...]]:
    """A TGI text without its `![](...)` pictures, which a vision model there replaces, and those pictures."""
    payloads = [match[1].encode(errors="replace") for match in _MARKDOWN.finditer(text)]
    return _MARKDOWN.sub("", text), tuple(_media(MediaKind.IMAGE, memoryview(payload), None) for payload in payloads)


def _parts(name: str, value: msgspec.Raw, depth: int) -> Iterator[MediaPart]:
    for item in _elements(value):
        fields = _members(item)
        kind = _kind(fields) if name in _PARTS else None
        if kind is not None:
            yield _media(kind, _payload(fields, 2), _detail(fields))
        elif depth:
            for inner in _LISTS:
                if inner in fields:
                    yield from _parts(inner, fields[inner], depth - 1)


def _stripped(name: str, value: msgspec.Raw, depth: int) -> msgspec.Raw:
    """The value itself when there is nothing in it to replace."""
    items = _elements(value)
    replaced = [_stripped_item(name, item, depth) for item in items]
    if all(new is old for new, old in zip(replaced, items, strict=True)):
        return value
    # An object in place of a list was read as a list of one.
    return msgspec.Raw(msgspec.json.encode(replaced if _opens(value, b"[") else replaced[0]))


def _stripped_item(name: str, item: msgspec.Raw, depth: int) -> msgspec.Raw:
    fields = _members(item)
    kind = _kind(fields) if name in _PARTS else None
    if kind is not None:
        return msgspec.Raw(msgspec.json.encode({"type": "text", "text": f"[{kind.value}]"}))
    replaced = {inner: _stripped(inner, fields[inner], depth - 1) for inner in _LISTS if depth and inner in fields}
    if all(replaced[inner] is fields[inner] for inner in replaced):
        return item
    return msgspec.Raw(msgspec.json.encode({**fields, **replaced}))


def _elements(value: msgspec.Raw) -> list[msgspec.Raw]:
    """The elements of a list; an object is its own only element, and anything else has none."""
    if _opens(value, b"{"):
        return [value]
    try:
        return _list.decode(value) if _opens(value, b"[") else []
    except (msgspec.MsgspecError, RecursionError):
        return []


def _members(value: msgspec.Raw) -> Fields:
    try:
        return _object.decode(value) if _opens(value, b"{") else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _opens(value: msgspec.Raw, bracket: bytes) -> bool:
    return bytes(memoryview(value)[:1]) == bracket


def _kind(fields: Fields) -> MediaKind | None:
    """What kind of medium a part is, None for text.

    A part of text is text whatever else is in it. A part with a `uuid` is what its keys say, as in the engine.
    """
    stated = _short_text(fields.get("type"))
    by_key = next((kind for key, kind in _KINDS.items() if key in fields), None)
    if by_key is not None and "uuid" in fields:
        return by_key
    if stated in TEXT_TYPES:
        return None
    return by_key if stated is None else _KINDS.get(stated, by_key)


def _detail(fields: Fields) -> str | None:
    inner = [_members(fields[name]) for name in _KINDS if name in fields]
    stated = (_short_text(one.get("detail")) for one in (fields, *inner))
    return next((text for text in stated if text is not None), None)


def _payload(fields: Fields, depth: int) -> memoryview:
    """The longest string where payloads are kept, without its quotes."""
    found = memoryview(b"")
    for name in fields.keys() & _PAYLOADS:
        value = fields[name]
        if _opens(value, b'"'):
            found = max(found, memoryview(value)[1:-1], key=len)
        elif depth and _opens(value, b"{"):
            found = max(found, _payload(_members(value), depth - 1), key=len)
    return found


def _media(kind: MediaKind, payload: memoryview, detail: str | None) -> MediaPart:
    head = bytes(payload[: _MAX_PREFIX + PEEK_CHARACTERS])
    start = head.find(b",", 0, _MAX_PREFIX) + 1 if head.startswith(b"data:") else 0
    if not start and _URL.match(head):
        return MediaPart(kind=kind, detail=detail)
    length = len(payload) - start
    seen = peek(head[start:])
    width, height = (picture_size(seen) if kind is MediaKind.IMAGE else None) or (None, None)
    seconds = wav_seconds(seen, length * 3 // 4) if kind is MediaKind.AUDIO else None
    return MediaPart(kind=kind, width=width, height=height, seconds=seconds, detail=detail, payload_bytes=length)


def _short_text(value: msgspec.Raw | None) -> str | None:
    """A short JSON string, None for anything else."""
    if value is None or len(memoryview(value)) > _MAX_WORD:
        return None
    try:
        text: object = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return text if isinstance(text, str) else None
