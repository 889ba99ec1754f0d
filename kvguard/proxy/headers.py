"""Which headers pass through, in either direction, and the ones kvguard adds."""

import re
from collections.abc import Iterable

from kvguard.proxy.upstream import Headers

TIER = b"x-kvguard-tier"
DEGRADED = b"x-kvguard-degraded"
REASON = b"x-kvguard-reason"
REQUEST_ID = b"x-kvguard-request-id"
OPT_OUT = b"x-kvguard-degrade"
_OWN = b"x-kvguard-"

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The client library writes these anew for its own connection. Answers must come uncompressed to be read in passing.
_RESTATED = frozenset({b"host", b"content-length", b"expect", b"accept-encoding"})

# Characters no field value may have (RFC 9110, 5.5); the server refuses to send them, so a space takes their place.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

_TRACE_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def find(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The first value of a header; names are compared in lower case."""
    return next((value for key, value in headers if key.lower() == name), None)


def to_upstream(
    headers: Iterable[tuple[bytes, bytes]], request_id: str, withheld: frozenset[bytes] = frozenset()
) -> Headers:
    """What of a client's headers a backend sees, with the request id set."""
    kept = _passing(headers, _RESTATED | withheld | {b"x-request-id"})
    return [*kept, (b"accept-encoding", b"identity"), (b"x-request-id", request_id.encode())]


def to_client(headers: Iterable[tuple[bytes, bytes]], added: Headers) -> Headers:
    """What of a backend's headers a client sees, with ours added. The server writes `date` itself."""
    names = {name for name, _ in added}
    kept = _passing(headers, names | {b"date"})
    return [*((name, _CONTROL.sub(b" ", value)) for name, value in kept), *added]


def _passing(headers: Iterable[tuple[bytes, bytes]], dropped: Iterable[bytes]) -> Headers:
    lowered = [(name.lower(), value) for name, value in headers]
    gone = _HOP_BY_HOP | _tokens(lowered, b"connection") | set(dropped)
    return [(name, value) for name, value in lowered if name not in gone and not name.startswith(_OWN)]


def asks_for_websocket(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request is to become a websocket."""
    lowered = [(name.lower(), value) for name, value in headers]
    return b"websocket" in _tokens(lowered, b"upgrade") and b"upgrade" in _tokens(lowered, b"connection")


def _tokens(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> set[bytes]:
    """What a header lists, over all lines of that name."""
    return {token.strip().lower() for key, value in headers if key == name for token in value.split(b",")}


def sane_request_id(value: bytes | None) -> str | None:
    """A client's request id if it is safe to log and forward."""
    return value.decode("ascii") if value is not None and _SANE_ID.fullmatch(value) else None


def trace_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The trace a request belongs to, by its `traceparent` (W3C Trace Context); "" without a valid one."""
    match = _TRACE_PARENT.fullmatch(find(headers, b"traceparent") or b"")
    return match[1].decode("ascii") if match else ""
