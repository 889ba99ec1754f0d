"""One TGI twin: its engine, its permits, its meters, and how its routes read a body and refuse one."""

from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive

from kvguard.clock import Clock
from kvguard.simulator import tgi_exposition
from kvguard.simulator.app import is_json, whole_body
from kvguard.simulator.driver import EngineDriver, RequestStream
from kvguard.simulator.engine import StepResult
from kvguard.simulator.tgi_config import TgiSimConfig
from kvguard.simulator.tgi_engine import TgiEngine, TgiRequest, TgiStats
from kvguard.simulator.tgi_exposition import PREFILL, TgiMeters
from kvguard.simulator.tgi_wire import MAX_BODY_BYTES, TgiCall, TgiError, overloaded

TgiDriver = EngineDriver[TgiRequest, TgiStats]


@dataclass(slots=True)
class TgiTwin:
    """What all routes share: engine, permits and meters."""

    config: TgiSimConfig
    clock: Clock
    driver: TgiDriver = field(init=False)
    meters: TgiMeters = field(default_factory=TgiMeters)
    permits: int = field(init=False)
    begun: bool = False
    _was_running: bool = False
    _dropped: int = 0

    def __post_init__(self) -> None:
        self.driver = EngineDriver(TgiEngine(self.config), self.clock)
        self.driver.on_step = self._stepped
        self.permits = self.config.max_concurrent_requests

    def _stepped(self, result: StepResult) -> None:
        if result.failed:
            self.meters.failed_step(PREFILL)
            self.meters.count("request_failure", len(result.failed), err="generation")
        else:
            self.meters.step(result, decoded=self._was_running)
        stats = self.driver.stats
        self.meters.count("request_failure", stats.dropped - self._dropped, err="dropped")
        self._dropped, self._was_running = stats.dropped, stats.running > 0

    def take(self, call: TgiCall) -> RequestStream:
        """A permit for each generation, and the generations under way. Raises TgiError when there are too few."""
        number = len(call.requests)
        self.meters.count("request_count", call.counted)
        if number > self.permits:
            self.meters.count("request_failure", err="overloaded")
            raise overloaded()
        self.permits -= number
        self.begun = True
        return self.driver.submit(call.requests, most_tokens=call.most_tokens)

    def give_back(self, call: TgiCall, stream: RequestStream) -> None:
        """The call is over, however it ended."""
        self.permits += len(call.requests)
        stream.close()

    def page(self) -> str:
        """The metrics page now."""
        return tgi_exposition.render(self.config, self.meters, self.driver.stats, begun=self.begun)


async def read_body(headers: Headers, receive: Receive) -> bytes:
    """The whole request body. Raises TgiError for one the server does not read."""
    if not is_json(headers):
        raise TgiError("Expected request with `Content-Type: application/json`", None, 415)
    body = await whole_body(receive, MAX_BODY_BYTES)
    if body is None:
        raise TgiError("Failed to buffer the request body: length limit exceeded", None, 413)
    return body


def refusal(error: TgiError) -> Response:
    """The error as a whole answer."""
    return Response(error.body, status_code=error.status, headers={"content-type": error.content_type})
