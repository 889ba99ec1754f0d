"""How a wire format tells that something went wrong: one function for a whole answer, one for the end of a stream."""

from dataclasses import dataclass
from typing import Protocol


class ErrorBody(Protocol):
    """Renders an error as a whole JSON answer.

    `code` is kvguard's reason, `kind` the class of error: `overloaded_error`, `upstream_error`, `server_error` or
    `invalid_request_error`; `param` the field at fault.
    """

    def __call__(self, message: str, *, code: str, kind: str, param: str | None = None) -> bytes: ...


class ErrorEvent(Protocol):
    """Renders an error as the last event of a stream."""

    def __call__(self, message: str, *, code: str, kind: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """Both forms of one wire format."""

    body: ErrorBody
    event: ErrorEvent
