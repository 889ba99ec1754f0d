"""vLLM's POST /invocations, as SageMaker calls it: a chat or a completion, read and answered like either."""

from typing import Final

from kvguard.protocols import openai_chat, openai_completions
from kvguard.protocols.fields import is_set, read_fields
from kvguard.protocols.invocations_prompt import prompt_of
from kvguard.protocols.request import InferenceRequest, read_common, streamed_openly
from kvguard.protocols.route import Route

PATH = "/invocations"
ADAPTER = b"x-amzn-sagemaker-adapter-identifier"


def parse(body: bytes) -> InferenceRequest:
    """Read a request by the rules of the one it is. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    caps = openai_chat.CAPS if is_set(fields, "messages") else openai_completions.CAPS
    return streamed_openly(read_common(body, fields, prompt_of(fields), caps))


ROUTE: Final = Route(path=PATH, parse=parse, model_header=ADAPTER)
