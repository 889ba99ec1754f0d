"""Top-level JSON fields of a request body, every value kept as the client's own bytes.

Only the fields that matter are decoded; whatever is not rewritten is forwarded byte for byte. Numbers and booleans are
read the way vLLM's models coerce them ("5", 5.0 and true are integers, "true" is a boolean).

Every list, object and entry that is built takes time during which nobody else is served, so their number is bounded,
and counted before anything is built.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from kvguard.errors import InvalidRequest

Fields = dict[str, msgspec.Raw]
Members = TypeVar("Members", bound=msgspec.Struct)

_decoder = msgspec.json.Decoder(Fields)
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_UNREAD = object()
_INTEGER = re.compile(r"\s*[+-]?[0-9]+(_[0-9]+)*(\.0+)?\s*")
_TRUE = frozenset({"true", "1", "on", "yes", "y", "t"})
_FALSE = frozenset({"false", "0", "off", "no", "n", "f"})
_INTEGER_LIMIT = 2**53

MAX_VALUES = 65_536
MAX_SCALAR_BYTES = 16_384
_CHUNK_BYTES = 262_144
MAX_DIGITS = 255  # of a number: twice as many take four times as long to read
_LONG_RUN = b"0" * (MAX_DIGITS + 1)
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)


def read_fields(body: bytes) -> Fields:
    """The top level of a JSON object; on duplicate keys the last one wins, as in the engine.

    Raises InvalidRequest when the body is not a JSON object, or one with more members than are built.
    """
    try:
        if body.count(b":") > MAX_VALUES:
            _refuse_many_members(body)
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("the body must be one JSON object in UTF-8") from None


class _LargeFields(msgspec.Struct):
    """Fields that may hold a great many colons, in texts or as members of their own."""

    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    suffix: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()
    instances: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    previous_input_messages: msgspec.Raw = msgspec.Raw()
    query: msgspec.Raw = msgspec.Raw()
    queries: msgspec.Raw = msgspec.Raw()
    texts: msgspec.Raw = msgspec.Raw()
    text_1: msgspec.Raw = msgspec.Raw()
    text_2: msgspec.Raw = msgspec.Raw()
    data_1: msgspec.Raw = msgspec.Raw()
    data_2: msgspec.Raw = msgspec.Raw()
    items: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    chat_template: msgspec.Raw = msgspec.Raw()
    logit_bias: msgspec.Raw = msgspec.Raw()
    response_format: msgspec.Raw = msgspec.Raw()
    structured_outputs: msgspec.Raw = msgspec.Raw()
    output_config: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()


_large_decoder = msgspec.json.Decoder(_LargeFields)


def _refuse_many_members(body: bytes) -> None:
    """Refuse a body that may have more than MAX_VALUES members, going by the colons outside its large fields."""
    large = _large_decoder.decode(body)
    colons = sum(bytes(getattr(large, name)).count(b":") for name in _LargeFields.__struct_fields__)
    if body.count(b":") - colons > MAX_VALUES:
        raise InvalidRequest(f"the body has more than {MAX_VALUES} fields")


def write_fields(fields: Fields) -> bytes:
    """The object again, in the client's order, raw values untouched."""
    return msgspec.json.encode(fields)


def decode(fields: Fields, name: str) -> object:
    """The decoded value of a field, None when absent or null.

    Raises InvalidRequest on malformed JSON and on more than MAX_VALUES values.
    """
    raw = fields.get(name)
    if raw is None:
        return None
    refuse_many_values(raw, name)
    return built(raw, name)


def built(raw: msgspec.Raw, name: str) -> object:
    """The value of the field `name`, of which the values were counted. Raises InvalidRequest on malformed JSON."""
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise not_json(name) from None
    return value


def _has_long_number(text: bytes) -> bool:
    """Whether there is a number of more than MAX_DIGITS digits; a text may have as many as it likes."""
    return _has_long_run(text) and any(map(_has_long_run, _outside_strings(text)))


def _has_long_run(text: bytes) -> bool:
    return _LONG_RUN in text.translate(_DIGITS_ALIKE)


def members(raw: msgspec.Raw, name: str) -> Fields:
    """The members of an object inside the field `name`, unread; none where it is no object. Raises as `built`."""
    if not opens(raw, b"{"):
        return {}
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise not_json(name) from None


def some_members(fields: Fields, name: str, decoder: "msgspec.json.Decoder[Members]") -> Members:
    """The members of an object that the decoder's type names; however many others there are, they cost nothing.

    Raises InvalidRequest when the field is no such object.
    """
    try:
        return decoder.decode(fields[name])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest(f"'{name}' must be an object", param=name) from None


def entries(raw: msgspec.Raw, name: str) -> list[msgspec.Raw]:
    """The entries of a list inside the field `name`, unread; none where it is no list. Raises as `built`."""
    if not opens(raw, b"["):
        return []
    try:
        return _list_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise not_json(name) from None


def opens(raw: msgspec.Raw, bracket: bytes) -> bool:
    """Whether a value is a list, an object or a string, by the byte it begins with."""
    view = memoryview(raw)
    return bool(view) and view[0] == bracket[0]


def _is_container(raw: msgspec.Raw) -> bool:
    return opens(raw, b"[") or opens(raw, b"{")


def not_json(name: str) -> InvalidRequest:
    """The error for a field that cannot be decoded."""
    return InvalidRequest(f"'{name}' is not valid JSON", param=name)


def refuse_many_values(raw: msgspec.Raw, name: str, *, besides: int = 0, most: int = MAX_VALUES) -> int:
    """The number of values in the field `name` and `besides`.

    Raises InvalidRequest when they are more than `most`, and on a number inside that takes long to read.
    """
    count = besides + value_count(raw, most)
    if count > most:
        raise InvalidRequest(f"'{name}' has more than {most} lists, objects and entries", param=name)
    if _is_container(raw) and _has_long_number(bytes(raw)):
        raise InvalidRequest(f"'{name}' has a number of more than {MAX_DIGITS} digits", param=name)
    return count


def value_count(raw: msgspec.Raw, most: int = MAX_VALUES) -> int:
    """Opening brackets and commas outside strings, one for a scalar: never fewer than the values there are.

    Strings may hold any number of either, so those of a large value are cut out first. Of more than `most` only that
    is told. Nothing is built but bytes.
    """
    if not _is_container(raw):
        return 1
    text = bytes(raw)
    count = _bounded_sum((_marks(chunk) for chunk in _chunks(text)), most)
    return count if count <= most else _bounded_sum((_marks(part) for part in _outside_strings(text)), most)


def _bounded_sum(counts: Iterable[int], most: int) -> int:
    total = 0
    for count in counts:
        total += count
        if total > most:
            break
    return total


def _chunks(text: bytes) -> Iterator[bytes]:
    return (text[start : start + _CHUNK_BYTES] for start in range(0, len(text), _CHUNK_BYTES))


def _outside_strings(text: bytes) -> Iterator[bytes]:
    if b"\\" in text:
        # As long as before, which takes half the time.
        text = text.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    inside = 0
    for chunk in _chunks(text):
        parts = chunk.split(b'"')
        yield b"".join(parts[inside::2])
        inside = (inside + len(parts) - 1) % 2


def _marks(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{") + text.count(b",")


def _scalar(fields: Fields, name: str) -> object:
    """As `decode`; a list, an object or a text above MAX_SCALAR_BYTES is no number and no boolean, and is not read."""
    raw = fields.get(name)
    if raw is None or not any(opens(raw, bracket) for bracket in (b"[", b"{", b'"')):
        return decode(fields, name)
    return decode(fields, name) if opens(raw, b'"') and len(memoryview(raw)) <= MAX_SCALAR_BYTES else _UNREAD


def read_text(fields: Fields, name: str) -> str | None:
    """A short text such as a name, None for anything else. Raises InvalidRequest on malformed JSON."""
    value = _scalar(fields, name)
    return value if isinstance(value, str) else None


def read_int(fields: Fields, name: str) -> int | None:
    """An integer field, None when absent or null."""
    value = _scalar(fields, name)
    if value is None:
        return None
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = float(value)
    if isinstance(value, int | float) and abs(value) < _INTEGER_LIMIT and value == int(value):
        return int(value)
    raise InvalidRequest(f"'{name}' must be an integer", param=name)


def read_bool(fields: Fields, name: str) -> bool:
    """A boolean field, False when absent or null."""
    value = _scalar(fields, name)
    if value is None or value in (0, 1):
        return bool(value)
    text = value.lower() if isinstance(value, str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise InvalidRequest(f"'{name}' must be true or false", param=name)


def is_set(fields: Fields, name: str) -> bool:
    """Whether a field is there with a value other than null."""
    raw = fields.get(name)
    return raw is not None and not (opens(raw, b"n") and len(memoryview(raw)) == len(b"null"))


def is_filled(fields: Fields, name: str) -> bool:
    """Whether a list or an object is there and not empty."""
    return is_set(fields, name) and memoryview(fields[name])[1:-1].tobytes().strip() != b""
