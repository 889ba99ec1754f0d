"""Requests that have no say in how much is generated: nothing for pooling models, one token for a score."""

from dataclasses import replace

from kvguard.protocols.fields import Fields
from kvguard.protocols.prompts import Prompt
from kvguard.protocols.request import CapRule, InferenceRequest, read_common

_KNOWN = ("model", "add_special_tokens")


def read_prefill(
    body: bytes, fields: Fields, prompt: Prompt, *, output_tokens: int, truncate_to: int | None
) -> InferenceRequest:
    """The request, each prompt of which ends with exactly `output_tokens`. Raises InvalidRequest naming the field.

    What says how to generate elsewhere is not read: these routes do not know it.
    """
    known = {name: fields[name] for name in _KNOWN if name in fields}
    rule = CapRule(names=(), default_tokens=output_tokens)
    request = read_common(body, known, prompt, rule, copied=False)
    return replace(request, fields=fields, params=fields, truncate_to=truncate_to, fixed_length=True)
