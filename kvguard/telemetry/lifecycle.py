"""What is told of a kvguard process itself: whether it is ready and what it is doing, as metrics and as log lines."""

import logging
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvguard.telemetry.events import Phase


class LifecycleCollector(Collector):
    """Reads the phase and the readiness when a scrape asks for them."""

    def __init__(self, phase: Callable[[], Phase], ready: Callable[[], bool]) -> None:
        self._phase = phase
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        """Both gauges."""
        phase = GaugeMetricFamily("kvguard_phase", "1 for what this process is doing", labels=("phase",))
        for each in Phase:
            phase.add_metric((each.value,), float(each is self._phase()))
        yield phase
        yield GaugeMetricFamily("kvguard_ready", "1 while /readyz says yes", value=float(self._ready()))


class LifecycleLog:
    """One line for each step of a process's life, with how much hangs on it."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def started(self, *, version: str, port: int, admin_port: int, config_hash: str) -> None:
        """Both ports answer."""
        self._write(logging.INFO, "started", version=version, port=port, admin_port=admin_port, config_hash=config_hash)

    def ready(self, *, seconds: float) -> None:
        """`/readyz` says yes from now on; the seconds are those without."""
        self._write(logging.INFO, "ready", seconds=round(seconds, 1))

    def not_ready(self, why: Sequence[str], *, seconds: float) -> None:
        """`/readyz` says no, for so long by now."""
        self._write(logging.WARNING, "not_ready", seconds=round(seconds, 1), why=list(why))

    def stopping(self, *, in_flight: int, seconds: float) -> None:
        """Not ready any more, but serving for so many seconds."""
        self._write(logging.INFO, "stopping", in_flight=in_flight, seconds=seconds)

    def draining(self, *, in_flight: int, seconds: float) -> None:
        """New requests are refused; those in flight have so many seconds."""
        self._write(logging.INFO, "draining", in_flight=in_flight, seconds=seconds)

    def drained(self, *, seconds: float, cut: int) -> None:
        """The last answers ended after so many seconds; those that were `cut` had not."""
        level = logging.WARNING if cut else logging.INFO
        self._write(level, "drained", seconds=round(seconds, 1), cut=cut)

    def stopped(self, *, reservations: int) -> None:
        """Nothing is served any more. Reservations that are left are a fault of kvguard's own."""
        level = logging.ERROR if reservations else logging.INFO
        self._write(level, "stopped", reservations=reservations)

    def _write(self, level: int, event: str, **fields: object) -> None:
        self._logger.log(level, event, extra={"fields": fields})
