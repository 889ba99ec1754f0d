"""POST /v1/completions: `prompt` as a string, strings, token ids or lists of token ids."""

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, decode, read_fields
from kvguard.protocols.request import CapRule, InferenceRequest, Prompt, TextPrompts, TokenPrompts, read_common

PATH = "/v1/completions"
CAPS = CapRule(names=("max_tokens",), default_tokens=16)
MAX_PROMPTS = 1024  # vLLM's own limit on a list of prompts

_parts = msgspec.json.Decoder(list[msgspec.Raw])


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    _refuse_too_many(fields)
    return read_common(body, fields, _prompt(decode(fields, "prompt")), CAPS)


def _refuse_too_many(fields: Fields) -> None:
    """Refuse a long list of prompts before building it; a list of token ids may be as long as it likes."""
    try:
        parts = _parts.decode(fields.get("prompt", b"null"))
    except (msgspec.MsgspecError, RecursionError):
        return
    if len(parts) > MAX_PROMPTS and bytes(parts[0])[:1] in (b"[", b'"'):
        raise InvalidRequest(f"'prompt' has more than {MAX_PROMPTS} entries", param="prompt")


def _prompt(value: object) -> Prompt:
    if isinstance(value, str):
        return TextPrompts((value,))
    if isinstance(value, list) and value:
        return _prompts(value)
    raise InvalidRequest("'prompt' must be a non-empty string or list", param="prompt")


def _prompts(values: list[object]) -> Prompt:
    if all(isinstance(value, int) for value in values):
        return TokenPrompts((len(values),))
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) == len(values):
        return TextPrompts(texts)
    lengths = tuple(len(value) for value in values if isinstance(value, list))
    if len(lengths) == len(values) and all(lengths):
        return TokenPrompts(lengths)
    raise InvalidRequest("'prompt' must be strings only or lists of token ids only", param="prompt")
