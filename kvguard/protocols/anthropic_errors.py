"""The error object of Anthropic's API, as an answer body and as an event inside a stream.

`type` is one of the names that API has, which its clients branch on; kvguard's own reason is in `code`.
"""

from typing import Final

import msgspec

from kvguard.protocols.error_format import ErrorFormat

_BY_CODE: Final = {
    "backend_unreachable": "api_error",
    "body_too_large": "request_too_large",
    "not_found": "not_found_error",
    "tenant_share": "rate_limit_error",
}
_BY_KIND: Final = {"upstream_error": "api_error", "server_error": "api_error"}


def error_body(message: str, *, code: str, kind: str, param: str | None = None) -> bytes:
    """`{"type": "error", "error": {...}}`; classes of error that have the same name there keep it."""
    named = _BY_CODE.get(code) or _BY_KIND.get(kind, kind)
    error = {"type": named, "message": message, "param": param, "code": code}
    return msgspec.json.encode({"type": "error", "error": error})


def error_event(message: str, *, code: str, kind: str) -> bytes:
    """The same object as an event of its own name. No `message_stop` follows it: the answer is not complete."""
    return b"event: error\ndata: " + error_body(message, code=code, kind=kind) + b"\n\n"


ANTHROPIC_ERRORS: Final = ErrorFormat(body=error_body, event=error_event)
