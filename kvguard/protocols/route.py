"""What one generating route is: where it is, how its bodies are read, and how it answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvguard.protocols.error_format import ErrorFormat
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.sse import OPENAI, StreamFormat, Usage, read_usage

AnswerHeaders = Sequence[tuple[bytes, bytes]]  # names in lower case


def body_usage(body: bytes, _: AnswerHeaders) -> Usage | None:
    """The usage of a whole answer that has it in its body."""
    return read_usage(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route that takes KV. `path` is also its label; `parse` raises InvalidRequest naming the field at fault.

    A header of the name `model_header` names the model in place of the body. `usage` reads that of a whole answer; a
    body too long to be kept is empty to it.
    """

    path: str
    parse: Callable[[bytes], InferenceRequest]
    errors: ErrorFormat = OPENAI_ERRORS
    stream: StreamFormat = OPENAI
    usage: Callable[[bytes, AnswerHeaders], Usage | None] = body_usage
    model_header: bytes = b""
