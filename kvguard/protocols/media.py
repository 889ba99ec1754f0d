"""Pictures, recordings and files in a conversation: what they are, and the conversation without their bytes.

Parts are read where vLLM's chat reads them, directly in the content of a message; every other wire format is brought
into that form first. Follows vLLM 0.32 `renderers/chat_utils.py` in which kind a part is and where its payload stands.
Payloads are never decoded, fetched or turned into text; at most `picture_size.PEEK_CHARACTERS` of each are looked at.
Everything else stays the client's own bytes.
"""

import enum
import re
from dataclasses import dataclass

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, is_filled, opens
from kvguard.protocols.picture_size import PEEK_CHARACTERS, peek, picture_size, wav_seconds

MAX_PARTS = 1024  # of a request that are not text; vLLM's own limit is 999 of a kind unless it is raised

TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
_MARKDOWN = re.compile(r"!\[\]\(([^)]*)\)")

_URL = re.compile(rb"[a-z]{1,8}:")
_MAX_PREFIX = 256  # "data:image/png;base64,"
_START_CHARACTERS = _MAX_PREFIX + PEEK_CHARACTERS
_ESCAPE_BYTES = 6  # of the longest way to write a character
_CUT_ESCAPE = re.compile(rb"\\(?:u[0-9A-Fa-f]{0,3})?\Z")
_MAX_WORD = 256  # the longest value of `type` that is read

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
    """One part that is not text. Sizes are those its payload states, None when it is elsewhere or says nothing."""

    kind: MediaKind
    width: int | None = None
    height: int | None = None
    seconds: float | None = None


_MARKS = {kind: msgspec.Raw(msgspec.json.encode({"type": "text", "text": f"[{kind.value}]"})) for kind in MediaKind}

# What a part is by its type, or by a key of that name.
_KINDS = {
    "image_url": MediaKind.IMAGE,
    "image_pil": MediaKind.IMAGE,
    "image_embeds": MediaKind.IMAGE,
    "audio_embeds": MediaKind.AUDIO,
    "video_embeds": MediaKind.VIDEO,
    "prompt_embeds": MediaKind.FILE,
    "audio_url": MediaKind.AUDIO,
    "input_audio": MediaKind.AUDIO,
    "video_url": MediaKind.VIDEO,
    "input_image": MediaKind.IMAGE,
    "image": MediaKind.IMAGE,
    "audio": MediaKind.AUDIO,
    "video": MediaKind.VIDEO,
    "input_video": MediaKind.VIDEO,
    "document": MediaKind.FILE,
    "file": MediaKind.FILE,
    "input_file": MediaKind.FILE,
}
# The keys vLLM looks for, in its order, in a part without a type or with a `uuid`; the first there is decides.
_KEYS = tuple(_KINDS)[:9]
_TEXT_KEY = "tool_reference"  # the last it looks for
_NAMED = frozenset({*_KINDS, _TEXT_KEY})
# Where the payload of a part of this type stands, and in an object there, in which member; others state no size.
_PAYLOADS = {
    "image_url": ("image_url", "url"),
    "input_image": ("image_url", "url"),
    "audio_url": ("audio_url", "url"),
    "input_audio": ("input_audio", "data"),
    "video_url": ("video_url", "url"),
}


def apart(fields: Fields) -> tuple[Fields, tuple[MediaPart, ...]]:
    """The fields with a text part that names its kind in place of each part that is not text, and those parts.

    The fields are the same object without any. No size is told where `mm_processor_kwargs` may change it.
    Raises InvalidRequest when there are more than MAX_PARTS.
    """
    found: list[MediaPart] = []
    messages = [_without_media(message, found) for message in _elements(fields.get("messages"))]
    if not found:
        return fields, ()
    if is_filled(fields, "mm_processor_kwargs"):
        found = [MediaPart(kind=part.kind) for part in found]
    return {**fields, "messages": msgspec.Raw(msgspec.json.encode(messages))}, tuple(found)


def of_content_parts(parts: msgspec.Raw) -> tuple[MediaPart, ...]:
    """The parts in `content_parts`, each a type and a `url`. Raises as `apart`."""
    found: list[MediaPart] = []
    for part in map(_members, _elements(parts)):
        kind = _KINDS.get(_short_text(part.get("type")) or "")
        if kind is not None:
            _add(_sent(kind, None if _has_uuid(part) else part.get("url")), found, "content_parts")
    return tuple(found)


def markdown_media(text: str) -> tuple[str, tuple[MediaPart, ...]]:
    """A TGI text without its `![](...)` pictures, which a vision model there replaces, and those pictures.

    Raises as `apart`.
    """
    end = text.rfind(")") + 1  # from no beginning before it does the search run to the end of the text in vain
    found: list[MediaPart] = []
    for match in _MARKDOWN.finditer(text, 0, end):
        _add(_media(MediaKind.IMAGE, match[1][:_START_CHARACTERS].encode(errors="replace")), found, "inputs")
    return _MARKDOWN.sub("", text[:end]) + text[end:], tuple(found)


def _without_media(message: msgspec.Raw, found: list[MediaPart]) -> msgspec.Raw:
    """The message itself when there is nothing in it to replace."""
    fields = _members(message)
    content = fields.get("content")
    if content is None or not opens(content, b"["):
        return message
    before = len(found)
    marked = [_marked(part, found) for part in _elements(content)]
    if len(found) == before:
        return message
    return msgspec.Raw(msgspec.json.encode({**fields, "content": marked}))


def _marked(part: msgspec.Raw, found: list[MediaPart]) -> msgspec.Raw:
    """The part, or the mark in its place when it is not text, which is then among those found."""
    fields = _members(part)
    name = _name(fields) if fields else None
    if name is None:
        return part
    _add(_sent(_KINDS[name], _payload(fields, name)), found, "messages")
    return _MARKS[_KINDS[name]]


def _add(part: MediaPart, found: list[MediaPart], name: str) -> None:
    if len(found) == MAX_PARTS:
        raise InvalidRequest(f"'{name}' has more than {MAX_PARTS} parts that are not text", param=name)
    found.append(part)


def _elements(value: msgspec.Raw | None) -> list[msgspec.Raw]:
    """The elements of a list; anything else has none."""
    try:
        return _list.decode(value) if value is not None and opens(value, b"[") else []
    except (msgspec.MsgspecError, RecursionError):
        return []


def _members(value: msgspec.Raw) -> Fields:
    try:
        return _object.decode(value) if opens(value, b"{") else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _name(fields: Fields) -> str | None:
    """The type of a part that is not text, or the key that stands for one; None for text.

    A part of text is text whatever else is in it, unless it has a `uuid`: then, as without a type, the engine goes by
    the keys.
    """
    stated = _short_text(fields.get("type"))
    if _NAMED.isdisjoint(fields):
        return stated if stated in _KINDS else None
    if stated is None or _has_uuid(fields):
        by_key = next((key for key in (*_KEYS, _TEXT_KEY) if key in fields), None)
        if by_key is not None:
            return None if by_key == _TEXT_KEY else by_key
    if stated in TEXT_TYPES:
        return None
    # What vLLM answers with an error; other engines may know it.
    return stated if stated in _KINDS else next((key for key in _KINDS if key in fields), None)


def _payload(fields: Fields, name: str) -> msgspec.Raw | None:
    """The string the engine reads such a part from; None when there is none, or none that states a size.

    With a `uuid` the engine may take what it remembers by that name, whatever is sent.
    """
    if _has_uuid(fields):
        return None
    key, member = _PAYLOADS.get(name, ("", ""))
    value = fields.get(key)
    if value is not None and opens(value, b"{"):
        inner = _members(value)
        value = None if _spoils_url(inner.get("format")) else inner.get(member)
    return value


def _has_uuid(fields: Fields) -> bool:
    return "uuid" in fields and bytes(fields["uuid"]) != b"null"


def _spoils_url(form: msgspec.Raw | None) -> bool:
    """Whether the format of a recording, which the engine puts before its data in a URL, brings data of its own."""
    return form is not None and "," in (_short_text(form) or ",")


def _start(value: msgspec.Raw) -> bytes:
    """The first characters of a JSON string in UTF-8; empty where a backslash stands for itself.

    PHP escapes every slash in it, .NET every plus.
    """
    text = bytes(memoryview(value)[1:-1][: 2 * _START_CHARACTERS])
    if b"\\\\" in text:
        return b""
    text = text.replace(b"\\/", b"/")
    if b"\\" not in text:
        return text[:_START_CHARACTERS]
    whole = text[:-_ESCAPE_BYTES] + _CUT_ESCAPE.sub(b"", text[-_ESCAPE_BYTES:])
    try:
        unescaped: str = msgspec.json.decode(b'"%s"' % whole, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return b""
    return unescaped.encode(errors="replace")[:_START_CHARACTERS]


def _length(value: msgspec.Raw) -> int:
    """At most how many characters a JSON string has, exactly for base64 however it is escaped."""
    text = bytes(memoryview(value)[1:-1])
    if b"\\" not in text or b"\\\\" in text:
        return len(text)
    return len(text) - text.count(b"\\/") - (_ESCAPE_BYTES - 1) * text.count(b"\\u")


def _sent(kind: MediaKind, value: msgspec.Raw | None) -> MediaPart:
    """A part whose payload is this value, which says nothing unless it is a JSON string."""
    if value is None or not opens(value, b'"'):
        return MediaPart(kind=kind)
    return _media(kind, _start(value), _length(value) if kind is MediaKind.AUDIO else 0)


def _media(kind: MediaKind, head: bytes, length: int = 0) -> MediaPart:
    """A part of which the payload begins so and has at most so many characters."""
    start = head.find(b",", 0, _MAX_PREFIX) + 1 if head.startswith(b"data:") else 0
    if not start and _URL.match(head):
        return MediaPart(kind=kind)
    seen = peek(head[start:])
    width, height = (picture_size(seen) if kind is MediaKind.IMAGE else None) or (None, None)
    seconds = wav_seconds(seen, (length - start) * 3 // 4) if kind is MediaKind.AUDIO else None
    return MediaPart(kind=kind, width=width, height=height, seconds=seconds)


def _short_text(value: msgspec.Raw | None) -> str | None:
    """A short JSON string, None for anything else."""
    if value is None or len(memoryview(value)) > _MAX_WORD:
        return None
    try:
        text: object = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return text if isinstance(text, str) else None
