"""The traffic port: one raw ASGI callable with an explicit list of what may pass. Everything else is a 404.

Paths are compared as they came on the wire, so no encoding of a control route can slip through, and what is forwarded
is the listed path itself. An upgrade to a websocket, which could carry anything past admission, is refused on each.
"""

import asyncio
from dataclasses import replace

from kvguard.admission.reasons import RejectReason
from kvguard.clock import Clock
from kvguard.errors import InvalidRequest, UpstreamError, UpstreamPoolExhausted
from kvguard.protocols.routes import RouteTable
from kvguard.proxy.controller import MESSAGES, Controller, Refusal
from kvguard.proxy.exchange import BodyTooLarge, ClientGone, Exchange, Message, Receive, Send, WholeAnswer
from kvguard.proxy.headers import asks_for_websocket, to_upstream
from kvguard.proxy.open_exchanges import OpenExchanges
from kvguard.proxy.pipeline import Pipeline
from kvguard.proxy.reads import Read, own_answer
from kvguard.proxy.refusal import body_too_large, invalid_request, render
from kvguard.proxy.relay import AnswerCut, Relay
from kvguard.proxy.upstream import Upstream, UpstreamRequest
from kvguard.telemetry.events import DecisionEvent, Outcome
from kvguard.telemetry.reporter import Reporter


class TrafficApp:
    """Dispatches by path and method and keeps every exception from the client.

    `policy` is the pipeline's to begin with and may be exchanged at any time; `open` are the exchanges being served.
    """

    def __init__(
        self,
        table: RouteTable,
        pipeline: Pipeline,
        controller: Controller,
        upstream: Upstream,
        reporter: Reporter,
        clock: Clock,
    ) -> None:
        self._table = table
        self._pipeline = pipeline
        self._controller = controller
        self._upstream = upstream
        self._reporter = reporter
        self._clock = clock
        self.open = OpenExchanges()
        self.policy = pipeline.policy

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        patience = self.policy.patience
        exchange = Exchange(scope, receive, send, received_at=self._clock.now(), patience=patience)
        path = scope["raw_path"].decode("latin-1")
        try:
            with self.open.serving(exchange):
                await self._dispatch(exchange, scope["method"], path)
        except ClientGone:
            return
        except AnswerCut:
            # Returning without an end makes the server close the connection: the one way left to say it broke.
            return
        except asyncio.CancelledError:
            if not exchange.cut_off:
                raise
            if not exchange.started:
                await exchange.respond(self._cut_off(exchange, path))
            # Otherwise the server ends the connection, as above.
        except Exception as error:  # noqa: BLE001  a fault of ours must not show its insides, nor end anything else
            self._reporter.fault(exchange.request_id, error)
            if not exchange.started:
                answer = self._error(path, 500, "internal_error", "kvguard failed on this request.")
                await exchange.respond(answer)

    async def _dispatch(self, exchange: Exchange, method: str, path: str) -> None:
        if asks_for_websocket(exchange.headers):
            answer = self._error(path, 501, "websocket_unsupported", "kvguard takes no websockets.")
            # Whatever follows on this connection may be no HTTP any more.
            await exchange.respond(replace(answer, headers=[*answer.headers, (b"connection", b"close")]))
            return
        if method == "POST" and path in self._table.generating:
            await self._generate(exchange, path)
        elif method == self._table.reads.get(path):
            await self._read(exchange, method, path)
        else:
            await exchange.respond(self._unserved(path))

    async def _generate(self, exchange: Exchange, path: str) -> None:
        """Serve it in a span of its own, if there are any."""
        traces, route = self._reporter.traces, self._table.generating[path]
        if traces is None:
            await self._pipeline.serve(exchange, route)
            return
        with traces.serving(path, exchange.headers, lambda: exchange.status) as (trace_id, headers):
            exchange.trace_id, exchange.headers = trace_id, headers
            await self._pipeline.serve(exchange, route)

    def _unserved(self, path: str) -> WholeAnswer:
        """The answer where there is no route, or none of that method."""
        allowed = ", ".join(self._table.methods(path))
        if not allowed:
            return self._error(path, 404, "not_found", "There is no such route.")
        answer = self._error(path, 405, "method_not_allowed", f"This route takes {allowed}.")
        return replace(answer, headers=[*answer.headers, (b"allow", allowed.encode())])

    async def _read(self, exchange: Exchange, method: str, path: str) -> None:
        """Answer a harmless read, or pass it to a backend that can."""
        try:
            body = await exchange.read_body(self.policy.max_body_bytes)
        except BodyTooLarge:
            limit, tier = self.policy.max_body_bytes, self._controller.tier
            await exchange.respond(self._rendered(path, body_too_large(limit, tier)))
            return
        except InvalidRequest as error:
            await exchange.respond(self._rendered(path, invalid_request(error, self._controller.tier)))
            return
        read = Read(method=method, path=path, body=body)
        own = own_answer(read, self._controller, self._clock.now())
        if own is not None:
            await exchange.respond(WholeAnswer(200, [(b"content-type", b"application/json")], own))
            return
        async with exchange.watch():
            failure = await self._pass(exchange, read)
        if failure is None:
            await exchange.finish()
        else:
            await exchange.respond(failure)

    async def _pass(self, exchange: Exchange, read: Read) -> WholeAnswer | None:
        wait = self.policy.retry_after_seconds
        backend = self._controller.reachable(read.model, self._clock.now())
        if backend is None:
            return self._refused(read.path, RejectReason.BACKEND_UNREACHABLE, wait)
        query = b"?" + exchange.query if exchange.query else b""
        identity = self._controller.governance.identity
        withheld = identity.withheld(trusted=identity.trusts(exchange.peer))
        request = UpstreamRequest(
            method=read.method,
            base_url=backend.url,
            target=read.path + query.decode("latin-1"),
            headers=to_upstream(exchange.headers, exchange.request_id, withheld),
            body=read.body,
        )
        try:
            answer = await self._upstream.send(request)
            try:
                await Relay(exchange, answer, self._clock, lambda _: None).run([], retry_after_seconds=wait)
            finally:
                answer.abort()
        except UpstreamPoolExhausted:
            return self._refused(read.path, RejectReason.QUEUE_TIMEOUT, wait)
        except UpstreamError:
            return self._refused(read.path, RejectReason.BACKEND_UNREACHABLE, wait)
        return None

    def _cut_off(self, exchange: Exchange, path: str) -> WholeAnswer:
        """The answer to a request that kvguard has no time left for."""
        reason = RejectReason.DRAINING
        if path in self._table.generating:
            self._reporter.decision(
                DecisionEvent(
                    request_id=exchange.request_id,
                    trace_id=exchange.trace_id,
                    route=path,
                    outcome=Outcome.FAILED,
                    tier=self._controller.tier,
                    reason=reason,
                )
            )
        return self._refused(path, reason, self.policy.retry_after_seconds)

    def _refused(self, path: str, reason: RejectReason, wait: float) -> WholeAnswer:
        tier, text = self._controller.tier, MESSAGES[reason]
        return self._rendered(path, Refusal(reason=reason, tier=tier, message=text, retry_after_seconds=wait))

    def _rendered(self, path: str, refusal: Refusal) -> WholeAnswer:
        return render(refusal, self.policy.statuses, self._table.errors_at(path))

    def _error(self, path: str, status: int, code: str, message: str) -> WholeAnswer:
        kind = "invalid_request_error" if status < 500 else "server_error"
        body = self._table.errors_at(path).body(message, code=code, kind=kind)
        return WholeAnswer(status, [(b"content-type", b"application/json")], body)
