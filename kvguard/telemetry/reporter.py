"""Hands every event to the metrics and the log."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvguard.admission.occupancy import TelemetryState
from kvguard.admission.tiers import Tier
from kvguard.pool.backend import ConditionChange, SizingReview, StandingChange, TierChange
from kvguard.telemetry.decision_log import DecisionFile
from kvguard.telemetry.events import DecisionEvent, EndEvent, WaitEnd
from kvguard.telemetry.live.record import Record
from kvguard.telemetry.log import DecisionLog
from kvguard.telemetry.metrics import Metrics

if TYPE_CHECKING:  # an extra brings what it imports
    from kvguard.telemetry.traces import Traces


class Reporter:
    """The one thing the request path and the poller report to. Decisions go to `file` too, where there is one;
    `on_tier` hears the tier of a backend when that changes or the backend is gone.
    """

    def __init__(self, metrics: Metrics, log: DecisionLog, live: Record, file: DecisionFile | None = None) -> None:
        self.on_tier: Callable[[str, Tier], None] = _nobody
        self._metrics = metrics
        self._log = log
        self._live = live
        self._file = file
        self.traces: Traces | None = None

    def decision(self, event: DecisionEvent) -> None:
        """A request was admitted, degraded or refused, or its backend failed."""
        self._metrics.decision(event)
        self._log.decision(event)
        self._live.decision(event)
        if self._file is not None:
            self._file.decision(event)
        if self.traces is not None:
            self.traces.decision(event)

    def end(self, event: EndEvent) -> None:
        """An admitted request ended."""
        self._metrics.end(event)
        self._log.end(event)
        if self.traces is not None:
            self.traces.end(event)

    def read(self, model: str, *, stream: bool) -> None:
        """The body of a request was read."""
        if self.traces is not None:
            self.traces.read(model, stream=stream)

    def tier_change(self, change: TierChange) -> None:
        """A backend's tier changed."""
        self._metrics.tier_change(change)
        self._log.tier_change(change)
        self._live.tier_change(change)
        self.on_tier(change.backend, change.after)

    def condition_change(self, change: ConditionChange, *, now: float) -> None:
        """A backend's engine is in another condition."""
        self._log.condition_change(change, now=now)
        self._live.condition_change(change)

    def standing(self, change: StandingChange | None) -> None:
        """A backend is given new requests, or not, unlike before."""
        if change is not None:
            self._log.standing(change)
            self._live.standing(change)

    def shared_address(self, backend: str) -> None:
        """Several servers answer under the one address of a backend."""
        self._log.shared_address(backend)

    def joined(self, backend: str) -> None:
        """A backend was found."""
        self._metrics.prepare_backend(backend)

    def left(self, backend: str) -> None:
        """A backend is gone, and nothing is in flight there any more."""
        self._metrics.forget_backend(backend)
        self._log.left(backend)
        self.on_tier(backend, Tier.NORMAL)

    def rerouted(self, backend: str) -> None:
        """A request went elsewhere because no connection to this backend could be made."""
        self._metrics.rerouted(backend)

    def counted(self, source: str, seconds: float) -> None:
        """A prompt was counted."""
        self._metrics.counted(source, seconds)

    def decided(self, seconds: float) -> None:
        """A decision took this long."""
        self._metrics.decided(seconds)

    def waited(self, end: WaitEnd, seconds: float) -> None:
        """A request waited for blocks this long, and this is how it ended."""
        self._metrics.waited(end, seconds)

    def scrape_failed(self, backend: str, *, state: str, detail: str, now: float) -> None:
        """A scrape gave no gauge."""
        self._metrics.scrape_failed(backend)
        if state != TelemetryState.FRESH.value:  # one failed scrape changes nothing
            self._log.telemetry(backend, state, detail=detail, now=now)

    def scraped(self, backend: str) -> None:
        """A scrape gave a gauge."""
        self._log.telemetry_recovered(backend)

    def discovered(self, backend: str, *, before: frozenset[str], after: frozenset[str]) -> None:
        """The name of a backend was looked up: these are the addresses in use."""
        self._metrics.discovered(backend, len(after))
        self._log.discovered(backend, added=sorted(after - before), removed=sorted(before - after), known=len(after))

    def discovery_failed(self, backend: str, *, why: str, known: int, now: float) -> None:
        """Looking up the name of a backend gave nothing; the addresses known so far stay in use."""
        self._metrics.discovery_failed(backend)
        self._log.discovery_failed(backend, why=why, known=known, now=now)

    def capacity_bound(self, backend: str, tokens: int | None) -> None:
        """Of a backend's cache no more is known than that it holds so many tokens at least."""
        self._log.capacity_bound(backend, tokens)

    def sizing(self, backend: str, review: SizingReview, *, geometry: bool) -> None:
        """A backend's thresholds or its block rule are judged otherwise than before; `geometry` says it has one."""
        if review.verdicts:
            self._log.thresholds(backend, review.verdicts)
        if review.misfit is not None:
            self._log.misfit(backend, review.misfit, geometry=geometry)

    def reloaded(self, config_hash: str, *, changed: bool, kept: Sequence[str]) -> None:
        """The settings file was read anew; `kept` names what takes a restart."""
        self._metrics.settings.reloaded()
        if changed or kept:
            self._log.reloaded(config_hash, changed=changed, kept=kept)

    def reload_failed(self, faults: Sequence[str]) -> None:
        """The settings file has faults; those in force stay."""
        self._metrics.settings.reload_failed()
        self._log.reload_failed(faults)

    def state(self, what: str, path: str, why: str) -> None:
        """The state file could not be used or written."""
        self._log.state(what, path, why)

    def fault(self, request_id: str, error: Exception) -> None:
        """kvguard itself failed on a request."""
        self._log.fault(request_id, error)


def _nobody(_backend: str, _tier: Tier) -> None:
    pass
