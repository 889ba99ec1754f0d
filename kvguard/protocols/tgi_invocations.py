"""TGI's POST /invocations, as SageMaker calls it: a native request, a chat or a completion; their fields tell which."""

from typing import Final

from kvguard.protocols.fields import read_fields
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.route import Route
from kvguard.protocols.strict_fields import read_flag
from kvguard.protocols.tgi_chat import chat
from kvguard.protocols.tgi_completions import completion
from kvguard.protocols.tgi_errors import TGI_ERRORS
from kvguard.protocols.tgi_generate import STREAM, native
from kvguard.protocols.tgi_prompt import only_prompt_field
from kvguard.protocols.tgi_usage import answer_usage

PATH: Final = "/invocations"


def parse(body: bytes) -> InferenceRequest:
    """Read a request as the one it is. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    kind = only_prompt_field(fields)
    if kind == "inputs":
        return native(body, fields, stream=read_flag(fields, "stream"))
    return chat(body, fields) if kind == "messages" else completion(body, fields)


ROUTE: Final = Route(path=PATH, parse=parse, errors=TGI_ERRORS, stream=STREAM, usage=answer_usage)
