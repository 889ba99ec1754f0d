"""The model that a body names, for requests of which nothing else matters. What is wrong with them the engine says."""

import msgspec


class _Named(msgspec.Struct):
    model: str | None = None


_decoder = msgspec.json.Decoder(_Named)


def model_named(body: bytes) -> str | None:
    """The model, None where a body names none or cannot be read."""
    try:
        return _decoder.decode(body).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
