"""POST /inference/v1/generate: token ids in, token ids out. How to generate is said in `sampling_params`.

Follows vLLM 0.32, whose streams are those of completions but for what a chunk holds. It knows no beam search here and
cuts no prompt.
"""

from dataclasses import replace
from typing import Final

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import opens, read_fields
from kvguard.protocols.generate_prompt import prompt_of
from kvguard.protocols.request import CapRule, InferenceRequest, read_common, streamed_openly
from kvguard.protocols.route import Route

PATH = "/inference/v1/generate"
CAPS = CapRule(names=("max_tokens",), default_tokens=None)
PARAMS = "sampling_params"

_NULL = msgspec.Raw(b"null")


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    params = fields.get(PARAMS, _NULL)
    if not opens(params, b"{"):
        raise InvalidRequest(f"'{PARAMS}' must be an object", param=PARAMS)
    request = read_common(body, fields, prompt_of(fields), CAPS, inside=PARAMS)
    return streamed_openly(replace(request, beams=False, truncate_to=None))


ROUTE: Final = Route(path=PATH, parse=parse)
