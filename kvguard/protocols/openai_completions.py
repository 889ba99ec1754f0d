"""POST /v1/completions: `prompt` as a string, strings, token ids or lists of token ids."""

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import decode, read_fields
from kvguard.protocols.request import CapRule, InferenceRequest, Prompt, TextPrompts, TokenPrompts, read_common

PATH = "/v1/completions"
CAPS = CapRule(names=("max_tokens",), default_tokens=16)
MAX_PROMPTS = 1024  # vLLM's own limit on a list of prompts


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    return read_common(body, fields, _prompt(decode(fields, "prompt")), CAPS)


def _prompt(value: object) -> Prompt:
    if isinstance(value, str):
        return TextPrompts((value,))
    if isinstance(value, list) and value:
        return _prompts(value)
    raise InvalidRequest("'prompt' must be a non-empty string or list", param="prompt")


def _prompts(values: list[object]) -> Prompt:
    if all(isinstance(value, int) for value in values):
        return TokenPrompts((len(values),))
    if len(values) > MAX_PROMPTS:
        raise InvalidRequest(f"'prompt' has more than {MAX_PROMPTS} entries", param="prompt")
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) == len(values):
        return TextPrompts(texts)
    lengths = tuple(len(value) for value in values if isinstance(value, list))
    if len(lengths) == len(values) and all(lengths):
        return TokenPrompts(lengths)
    raise InvalidRequest("'prompt' must be strings only or lists of token ids only", param="prompt")
