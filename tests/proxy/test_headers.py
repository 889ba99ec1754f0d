"""Headers: what passes in each direction."""

import pytest

from kvguard.proxy.headers import asks_for_websocket, find, sane_request_id, to_client, to_upstream, trace_id_of


def test_hop_by_hop_and_restated_headers_do_not_reach_the_backend() -> None:
    """Connection headers, those it names, host, length, expect and kvguard's own are dropped; the rest is kept."""
    sent = [
        (b"Host", b"kvguard"),
        (b"Content-Length", b"3"),
        (b"Connection", b"close, X-Mine"),
        (b"X-Mine", b"1"),
        (b"Keep-Alive", b"5"),
        (b"TE", b"trailers"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Upgrade", b"h2c"),
        (b"Expect", b"100-continue"),
        (b"X-KVGuard-Tier", b"0"),
        (b"X-Request-Id", b"theirs"),
        (b"Accept-Encoding", b"gzip"),
        (b"Authorization", b"Bearer x"),
        (b"Cookie", b"a=1"),
        (b"Cookie", b"b=2"),
    ]
    assert to_upstream(sent, "ours") == [
        (b"authorization", b"Bearer x"),
        (b"cookie", b"a=1"),
        (b"cookie", b"b=2"),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", b"ours"),
    ]


def test_a_backends_headers_reach_the_client_without_its_connection_and_with_ours() -> None:
    """Repeated headers stay repeated; what kvguard adds replaces what the backend claims."""
    received = [
        (b"Date", b"today"),
        (b"Set-Cookie", b"a"),
        (b"Set-Cookie", b"b"),
        (b"Transfer-Encoding", b"chunked"),
        (b"x-kvguard-degraded", b"lie"),
        (b"Content-Length", b"2"),
    ]
    assert to_client(received, [(b"x-kvguard-tier", b"1")]) == [
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"content-length", b"2"),
        (b"x-kvguard-tier", b"1"),
    ]


@pytest.mark.parametrize(
    ("value", "sane"),
    [
        (b"abc-1", "abc-1"),
        (b"A" * 128, "A" * 128),
        (b"A" * 129, None),
        (b"", None),
        (b"a b", None),
        (b"a\nb", None),
        (b"\xc3\xa9", None),
        (None, None),
    ],
)
def test_only_a_harmless_request_id_is_taken_over(value: bytes | None, sane: str | None) -> None:
    """Ids that could break a log line or a header are replaced."""
    assert sane_request_id(value) == sane


def test_headers_are_found_whatever_their_case() -> None:
    """The first value counts, None when there is none."""
    headers = [(b"X-A", b"1"), (b"x-a", b"2")]
    assert find(headers, b"x-a") == b"1"
    assert find(headers, b"x-b") is None


@pytest.mark.parametrize(
    ("connection", "upgrade", "asks"),
    [
        ([b"Upgrade"], [b"websocket"], True),
        ([b"keep-alive, upgrade"], [b"WebSocket"], True),
        ([b"keep-alive", b"upgrade"], [b"h2c, websocket"], True),
        ([b"upgrade"], [b"h2c"], False),
        ([b"close"], [b"websocket"], False),
        ([], [b"websocket"], False),
        ([b"upgrade"], [], False),
        ([b"upgraded"], [b"websockets"], False),
    ],
)
def test_what_asks_for_a_websocket(connection: list[bytes], upgrade: list[bytes], asks: bool) -> None:
    """An upgrade that both headers name, in whatever case and company."""
    headers = [*((b"Connection", value) for value in connection), *((b"upgrade", value) for value in upgrade)]
    assert asks_for_websocket(headers) is asks


TRACE = b"0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"00-" + TRACE + b"-b7ad6b7169203331-01", TRACE.decode()),
        (b"01-" + TRACE + b"-b7ad6b7169203331-01-more", TRACE.decode()),
        (b"ff-" + TRACE + b"-b7ad6b7169203331-01", ""),
        (b"00-" + b"0" * 32 + b"-b7ad6b7169203331-01", ""),
        (b"00-" + TRACE + b"-0000000000000000-01", ""),
        (b"00-" + TRACE.upper() + b"-b7ad6b7169203331-01", ""),
        (b"00-" + TRACE + b"-b7ad6b7169203331", ""),
        (b"x\n", ""),
        (None, ""),
    ],
)
def test_the_trace_of_a_request(value: bytes | None, found: str) -> None:
    """Only a parent that the W3C's rules allow names one."""
    assert trace_id_of([] if value is None else [(b"traceparent", value)]) == found
