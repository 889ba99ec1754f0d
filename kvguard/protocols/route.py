"""What one generating route is: where it is, how its bodies are read, and how it answers."""

from collections.abc import Callable
from dataclasses import dataclass

from kvguard.protocols.error_format import ErrorFormat
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.sse import OPENAI, StreamFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route that takes KV. `path` is also its label; `parse` raises InvalidRequest naming the field at fault.

    A header of the name `model_header` names the model in place of the body.
    """

    path: str
    parse: Callable[[bytes], InferenceRequest]
    errors: ErrorFormat = OPENAI_ERRORS
    stream: StreamFormat = OPENAI
    model_header: bytes = b""
