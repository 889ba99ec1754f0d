"""Top-level JSON fields of a request body, every value kept as the client's own bytes.

Only the fields that matter are decoded; whatever is not rewritten is forwarded byte for byte. Numbers and booleans are
read the way vLLM's models coerce them ("5", 5.0 and true are integers, "true" is a boolean).
"""

import re

import msgspec

from kvguard.errors import InvalidRequest

Fields = dict[str, msgspec.Raw]

_decoder = msgspec.json.Decoder(Fields)
_INTEGER = re.compile(r"\s*[+-]?[0-9]+(_[0-9]+)*(\.0+)?\s*")
_TRUE = frozenset({"true", "1", "on", "yes", "y", "t"})
_FALSE = frozenset({"false", "0", "off", "no", "n", "f"})
_INTEGER_LIMIT = 2**53


def read_fields(body: bytes) -> Fields:
    """The top level of a JSON object; on duplicate keys the last one wins, as in the engine.

    Raises InvalidRequest when the body is not a JSON object.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("the body must be one JSON object in UTF-8") from None


def write_fields(fields: Fields) -> bytes:
    """The object again, in the client's order, raw values untouched."""
    return msgspec.json.encode(fields)


def decode(fields: Fields, name: str) -> object:
    """The decoded value of a field, None when absent or null. Raises InvalidRequest on malformed JSON."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest(f"'{name}' is not valid JSON", param=name) from None
    return value


def read_int(fields: Fields, name: str) -> int | None:
    """An integer field, None when absent or null."""
    value = decode(fields, name)
    if value is None:
        return None
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = float(value)
    if isinstance(value, int | float) and abs(value) < _INTEGER_LIMIT and value == int(value):
        return int(value)
    raise InvalidRequest(f"'{name}' must be an integer", param=name)


def read_bool(fields: Fields, name: str) -> bool:
    """A boolean field, False when absent or null."""
    value = decode(fields, name)
    if value is None or value in (0, 1):
        return bool(value)
    text = value.lower() if isinstance(value, str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise InvalidRequest(f"'{name}' must be true or false", param=name)


def is_set(fields: Fields, name: str) -> bool:
    """Whether a field is there with a value other than null."""
    raw = fields.get(name)
    return raw is not None and bytes(raw).strip() != b"null"


def is_filled(fields: Fields, name: str) -> bool:
    """Whether a list or an object is there and not empty."""
    return is_set(fields, name) and bytes(fields[name])[1:-1].strip() != b""
