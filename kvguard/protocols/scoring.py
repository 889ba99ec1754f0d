"""POST /generative_scoring: one token after the query and each item. A longer prompt is cut to leave room for it."""

from typing import Final

from kvguard.protocols.fields import read_fields
from kvguard.protocols.prefill import read_prefill
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.route import Route
from kvguard.protocols.scoring_prompt import prompt_of

PATH = "/generative_scoring"

_TO_CONTEXT = -1


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    return read_prefill(body, fields, prompt_of(fields), output_tokens=1, truncate_to=_TO_CONTEXT)


ROUTE: Final = Route(path=PATH, parse=parse)
