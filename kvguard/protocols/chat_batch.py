"""POST /v1/chat/completions/batch: several conversations in one call, one answer each, never a stream.

Follows vLLM 0.32, which hands every other field of the body on to a chat request for each conversation: the least
length, `ignore_eos` and the truncation of prompts are those of chat.
"""

from dataclasses import replace
from typing import Final

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_batch_prompt import prompt_of
from kvguard.protocols.fields import read_bool, read_fields
from kvguard.protocols.openai_chat import CAPS
from kvguard.protocols.request import InferenceRequest, read_common
from kvguard.protocols.route import Route

PATH = "/v1/chat/completions/batch"


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault.

    Asked to stream, the engine answers as ever but counts only the last step of each answer: its usage would teach a
    wrong length, so the answers are taken for as long as their cap.
    """
    fields = read_fields(body)
    request = read_common(body, fields, prompt_of(fields), CAPS)
    if request.copies != 1:
        raise InvalidRequest("'n' must be 1 here", param="n")
    if read_bool(fields, "use_beam_search"):
        raise InvalidRequest("'use_beam_search' is not supported here", param="use_beam_search")
    return replace(request, stream=False, fixed_length=request.fixed_length or request.stream)


ROUTE: Final = Route(path=PATH, parse=parse)
