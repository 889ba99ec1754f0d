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
from kvguard.protocols.fields import Fields, opens
from kvguard.protocols.picture_size import PEEK_CHARACTERS, peek, picture_size, wav_seconds

MAX_PARTS = 1024  # of a request that are not text; vLLM's own limit is 999 of a kind unless it is raised

TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
_MARKDOWN = re.compile(r"!\[\]\(([^)]*)\)")

_URL = re.compile(rb"[a-z]{1,8}:")
_MAX_PREFIX = 256  # "data:image/png;base64,"
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

    The fields are the same object without any. Raises InvalidRequest when there are more than MAX_PARTS.
    """
    found: list[MediaPart] = []
    messages = [_without_media(message, found) for message in _elements(fields.get("messages"))]
    return ({**fields, "messages": msgspec.Raw(msgspec.json.encode(messages))}, tuple(found)) if found else (fields, ())


def of_content_parts(parts: msgspec.Raw) -> tuple[MediaPart, ...]:
    """The parts in `content_parts`, each a type and a `url`. Raises as `apart`."""
    found: list[MediaPart] = []
    for part in map(_members, _elements(parts)):
        kind = _KINDS.get(_short_text(part.get("type")) or "")
        if kind is not None:
            _add(_media(kind, _string(part.get("url"))), found, "content_parts")
    return tuple(found)


def markdown_media(text: str) -> tuple[str, tuple[MediaPart, ...]]:
    """A TGI text without its `![](...)` pictures, which a vision model there replaces, and those pictures.

    Raises as `apart`.
    """
    end = text.rfind(")") + 1  # from no beginning before it does the search run to the end of the text in vain
    found: list[MediaPart] = []
    for match in _MARKDOWN.finditer(text, 0, end):
        _add(_media(MediaKind.IMAGE, match[1].encode(errors="replace")), found, "inputs")
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
    _add(_media(_KINDS[name], _payload(fields, name)), found, "messages")
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
    has_uuid = "uuid" in fields and bytes(fields["uuid"]) != b"null"
    if has_uuid or stated is None:
        by_key = next((key for key in (*_KEYS, _TEXT_KEY) if key in fields), None)
        if by_key is not None:
            return None if by_key == _TEXT_KEY else by_key
    if stated in TEXT_TYPES:
        return None
    # What vLLM answers with an error; other engines may know it.
    return stated if stated in _KINDS else next((key for key in _KINDS if key in fields), None)


def _payload(fields: Fields, name: str) -> bytes:
    """The string the engine reads such a part from, unescaped; empty when there is none, or none that states a size."""
    key, member = _PAYLOADS.get(name, ("", ""))
    value = fields.get(key)
    if value is not None and opens(value, b"{"):
        inner = _members(value)
        value = None if _spoils_url(inner.get("format")) else inner.get(member)
    return _string(value)


def _spoils_url(form: msgspec.Raw | None) -> bool:
    """Whether the format of a recording, which the engine puts before its data in a URL, brings data of its own."""
    return form is not None and "," in (_short_text(form) or ",")


def _string(value: msgspec.Raw | None) -> bytes:
    """A JSON string in UTF-8; empty for anything else. PHP escapes every slash in it, .NET every plus."""
    if value is None or not opens(value, b'"'):
        return b""
    text = bytes(value)
    if b"\\" not in text:
        return text[1:-1]
    try:
        unescaped: str = msgspec.json.decode(value, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return b""
    return unescaped.encode(errors="replace")


def _media(kind: MediaKind, payload: bytes) -> MediaPart:
    head = payload[: _MAX_PREFIX + PEEK_CHARACTERS]
    start = head.find(b",", 0, _MAX_PREFIX) + 1 if head.startswith(b"data:") else 0
    if not start and _URL.match(head):
        return MediaPart(kind=kind)
    seen = peek(head[start:])
    width, height = (picture_size(seen) if kind is MediaKind.IMAGE else None) or (None, None)
    seconds = wav_seconds(seen, (len(payload) - start) * 3 // 4) if kind is MediaKind.AUDIO else None
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
