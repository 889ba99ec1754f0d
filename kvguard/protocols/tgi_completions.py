"""TGI's POST /v1/completions: a text, or a few that run side by side. It looks at no `n`, `best_of` or `echo`."""

from dataclasses import replace
from typing import Final

from kvguard.protocols import tgi_chat
from kvguard.protocols.fields import Fields, is_filled, read_fields
from kvguard.protocols.request import CapRule, Copies, InferenceRequest
from kvguard.protocols.route import Route
from kvguard.protocols.strict_fields import read_flag, read_positive
from kvguard.protocols.tgi_prompt import completion_prompt_of
from kvguard.protocols.tgi_usage import answer_usage, summed_usage

PATH: Final = "/v1/completions"
CAPS: Final = CapRule(names=("max_tokens",), default_tokens=None)

# Every prompt ends with an event that has a reason to finish and a usage; where there is no terminator, the answer ends
# with the last of them.
STREAM: Final = replace(tgi_chat.STREAM, usage=summed_usage)


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    return completion(body, read_fields(body))


def completion(body: bytes, fields: Fields) -> InferenceRequest:
    """The request in these fields. Raises InvalidRequest naming the field at fault."""
    return InferenceRequest(
        body=body,
        fields=fields,
        params=fields,
        caps=CAPS,
        prompt=completion_prompt_of(fields),
        stream=read_flag(fields, "stream"),
        copies=1,
        beams=False,
        copied_by=Copies.NONE,
        requested_cap=read_positive(fields, "max_tokens"),
        min_tokens=0,
        truncate_to=None,
        fixed_length=False,
        traits=frozenset(),
        stops=is_filled(fields, "stop"),
        stream_format=STREAM,
        model=tgi_chat.model_of(fields),
    )


ROUTE: Final = Route(path=PATH, parse=parse, stream=STREAM, usage=answer_usage)
