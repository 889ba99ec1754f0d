"""Structured logs: one JSON object a line. Sizes and counts only, never content or credentials."""

import contextlib
import json
import logging
import logging.handlers
import queue
import re
import threading
import traceback
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from kvguard.admission.occupancy import Ratios
from kvguard.admission.reachability import Basis, RuleFit, ThresholdState, ThresholdVerdict
from kvguard.admission.tiers import Tier
from kvguard.pool.backend import ConditionChange, StandingChange, TierChange
from kvguard.pool.health import Standing
from kvguard.telemetry.events import DecisionEvent, End, EndEvent, Mode, Outcome

LOGGER = "kvguard"
LOGGERS = (LOGGER, "uvicorn.error", "asyncio")
MAX_QUEUED = 10_000


class JsonFormatter(logging.Formatter):
    """A record as one JSON object; `fields` passed through `extra` are merged in. Tracebacks lose their arguments."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[0]:
            # The type only: messages of third parties may quote what they choked on.
            line["error"] = record.exc_info[0].__name__
        return _plain(json.dumps(line, default=str))


class ConsoleFormatter(JsonFormatter):
    """A record as one line for people: time, level, event, and fields as `name=value`; in `colour` on a terminal."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        line = json.loads(super().format(record))
        at, level, event = line.pop("ts")[11:], line.pop("level").upper(), line.pop("event")
        head = f"{at} {level:<7} {_shown(event)}"
        if self._colour:
            head = f"\x1b[{_COLOURS.get(level, '0')}m{head}\x1b[0m"
        return " ".join([head, *(f"{name}={_shown(value)}" for name, value in line.items())])


_COLOURS = {"WARNING": "33", "ERROR": "31", "DEBUG": "2"}
_BARE = re.compile(r"[A-Za-z0-9._:/+=@,%>*()\[\]-]+")


def _shown(value: object) -> str:
    """A text as it is where that cannot be misread, anything else as JSON."""
    if isinstance(value, str) and _BARE.fullmatch(value):
        return value
    return _plain(json.dumps(value))


def _plain(text: str) -> str:
    """JSON escapes every control character but this one, which terminals obey too."""
    return text.replace("\x7f", "\\u007f")


def configure_logging(level: str, stream: TextIO, form: str = "json") -> logging.Logger:
    """Send kvguard's and uvicorn's records to `stream`, one a line, as `json` or for the `console`."""
    out = logging.StreamHandler(stream)
    out.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter(colour=stream.isatty()))
    for name, least in zip(LOGGERS, (level.upper(), "WARNING", "ERROR"), strict=True):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [out], False
        logger.setLevel(least)
    return logging.getLogger(LOGGER)


class _DroppingHandler(logging.handlers.QueueHandler):
    """Hands records to a thread; when that cannot keep up, records are dropped and the next one says how many."""

    def __init__(self, records: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(records)
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        if self._dropped:
            record.fields = {**getattr(record, "fields", {}), "dropped_before": self._dropped}
        try:
            self.queue.put_nowait(record)
            self._dropped = 0
        except queue.Full:
            self._dropped += 1

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Leave the record as it is: it stays in this process, and its traceback must not become text."""
        return record


@contextlib.contextmanager
def background_logging(level: str, stream: TextIO, form: str = "json") -> Iterator[logging.Logger]:
    """`configure_logging`, written by a thread, so that a reader of `stream` that stops cannot stop the service."""
    logging.raiseExceptions = False
    records: queue.Queue[logging.LogRecord] = queue.Queue(MAX_QUEUED)
    logger = configure_logging(level, stream, form)
    out = logger.handlers[0]
    handler = _DroppingHandler(records)
    for name in LOGGERS:
        logging.getLogger(name).handlers = [handler]
    writer = threading.Thread(target=_write_all, args=(records, out), name="log", daemon=True)
    writer.start()
    yield logger
    with contextlib.suppress(queue.Full):
        records.put_nowait(_LAST)
        writer.join(timeout=1.0)


_LAST = logging.LogRecord(LOGGER, logging.DEBUG, "", 0, "", None, None)


def _write_all(records: queue.Queue[logging.LogRecord], out: logging.Handler) -> None:
    while (record := records.get()) is not _LAST:
        out.handle(record)


@dataclass(slots=True)
class DecisionLog:
    """Writes events; `remind_seconds` limits how often the same condition of a backend is repeated. Of decisions that
    changed nothing this `sample` is written, by a hash of the request id, so that several kvguards write of the same.
    """

    logger: logging.Logger
    remind_seconds: float = 60.0
    sample: float = 0.0
    _reminded: dict[tuple[str, str], float] = field(default_factory=dict)
    _conditions: dict[tuple[str, str], float] = field(default_factory=dict)

    def decision(self, event: DecisionEvent) -> None:
        """A warning for every decision above tier 0; routine admissions and faults of clients only at debug, or where
        they are in the sample.
        """
        fault_of_client = event.reason is not None and not event.reason.retryable
        routine = event.outcome is Outcome.ADMITTED and event.tier is Tier.NORMAL
        level = logging.WARNING
        if routine or (fault_of_client and event.tier is Tier.NORMAL):
            level = logging.INFO if _sampled(event.request_id, self.sample) else logging.DEBUG
        if not self.logger.isEnabledFor(level):
            return
        self._write(
            level,
            "decision",
            request_id=event.request_id,
            trace_id=event.trace_id or None,
            route=event.route,
            outcome=event.outcome.value,
            tier=int(event.tier),
            reason=event.reason.value if event.reason else None,
            backend=event.backend or None,
            usage=rounded(event.ratios),
            prompt_tokens=event.prompt_tokens,
            predicted_blocks=event.blocks,
            changes=list(event.changes) or None,
            retry_after_seconds=None if event.retry_after_seconds is None else round(event.retry_after_seconds, 3),
            tenant=event.tenant or None,
            priority=event.priority or None,
            mode=event.mode.value if event.mode is Mode.SHADOW else None,
        )

    def end(self, event: EndEvent) -> None:
        """A warning when the answer broke off in the middle, else debug."""
        level = logging.WARNING if event.end in (End.UPSTREAM_ERROR, End.CUT) else logging.DEBUG
        self._write(
            level,
            "end",
            request_id=event.request_id,
            trace_id=event.trace_id or None,
            route=event.route,
            backend=event.backend,
            end=event.end.value,
            status=event.status,
            seconds=round(event.seconds, 3),
            detail=event.detail or None,
        )

    def tier_change(self, change: TierChange) -> None:
        """A warning on the way up, information on the way down."""
        level = logging.WARNING if change.after > change.before else logging.INFO
        self._write(
            level, "tier", backend=change.backend, before=change.before.name.lower(), after=change.after.name.lower()
        )

    def condition_change(self, change: ConditionChange, *, now: float) -> None:
        """A warning when the engine needs looking at, information when it no longer does; each condition said once
        per `remind_seconds`, because probes make one come and go.
        """
        last = self._conditions.get((change.backend, change.after.value))
        told = last is not None and now - last < self.remind_seconds
        if told or not (change.after.alarming or change.before.alarming):
            return
        self._conditions[change.backend, change.after.value] = now
        level = logging.WARNING if change.after.alarming else logging.INFO
        self._write(level, "condition", backend=change.backend, before=change.before.value, after=change.after.value)

    def standing(self, change: StandingChange) -> None:
        """A warning for a backend that failed, information for what is in order or wanted."""
        level = logging.WARNING if change.after is Standing.EJECTED else logging.INFO
        seconds = None if change.seconds is None else round(change.seconds, 1)
        self._write(
            level,
            "standing",
            backend=change.backend,
            before=change.before.value,
            after=change.after.value,
            seconds=seconds,
        )

    def shared_address(self, backend: str) -> None:
        """One gauge cannot stand for several servers."""
        why = (
            "several servers answer under this one address, so the gauge of one is taken for that of another; name "
            "each, or a headless Service as dns+http://name:port"
        )
        self._write(logging.WARNING, "shared_address", backend=backend, why=why)

    def left(self, backend: str) -> None:
        """Discovery does not find it any more, and its last answer has ended."""
        for told in (self._reminded, self._conditions):
            for key in [key for key in told if key[0] == backend]:
                del told[key]
        self._write(logging.INFO, "left", backend=backend)

    def telemetry(self, backend: str, state: str, *, detail: str, now: float) -> None:
        """A backend's gauge is not usable; said once per `remind_seconds`."""
        if self._due(backend, state, now):
            self._write(logging.WARNING, "telemetry", backend=backend, state=state, detail=detail)

    def telemetry_recovered(self, backend: str) -> None:
        """The gauge is fresh again after a warning."""
        if self._was_warned(backend):
            self._write(logging.INFO, "telemetry", backend=backend, state="fresh")

    def discovery_failed(self, backend: str, *, why: str, known: int, now: float) -> None:
        """The name of a backend could not be looked up; each reason said once per `remind_seconds`."""
        if self._due(backend, why, now):
            rest = f"the {known} known so far stay" if known else "none is known yet"
            self._write(logging.WARNING, "discovery", backend=backend, addresses=known, why=f"{why}; {rest}")

    def discovered(self, backend: str, *, added: Sequence[str], removed: Sequence[str], known: int) -> None:
        """Other addresses are in use behind a name, or it could be looked up again after a warning."""
        if self._was_warned(backend) or added or removed:
            self._write(
                logging.INFO,
                "discovery",
                backend=backend,
                addresses=known,
                added=list(added) or None,
                removed=list(removed) or None,
            )

    def thresholds(self, backend: str, verdicts: Sequence[ThresholdVerdict]) -> None:
        """Whether thresholds can be reached: a warning if one cannot, or if traffic as it is leaves no middle."""
        level = logging.WARNING if any(map(_alarming, verdicts)) else logging.INFO
        said = {verdict.tier.name.lower(): f"{verdict.state.value}: {verdict.why}" for verdict in verdicts}
        self._write(level, "thresholds", backend=backend, **said)

    def capacity_bound(self, backend: str, tokens: int | None) -> None:
        """The engine says of its cache only what it holds at least."""
        why = (
            "the server does not say how large its KV cache is, only which request it takes at most; set "
            "backends[].tgi.max_batch_total_tokens to what it logs at start (Setting max batch total tokens to ...)"
        )
        self._write(logging.WARNING, "capacity", backend=backend, at_least_tokens=tokens, why=why)

    def misfit(self, backend: str, fit: RuleFit, *, geometry: bool) -> None:
        """The block rule is not the engine's."""
        remedy = "the geometry does not match the engine" if geometry else "set backends[].geometry"
        why = (
            f"the engine holds {fit.engine_blocks:.1f} blocks for a request of its full context of "
            f"{fit.context_tokens} tokens, the block rule says {fit.predicted_blocks:g}: {remedy}"
        )
        self._write(logging.WARNING, "block_rule", backend=backend, ratio=round(fit.ratio, 3), why=why)

    def reloaded(self, config_hash: str, *, changed: bool, kept: Sequence[str]) -> None:
        """Settings are in force from the changed file; a warning names those that take a restart."""
        why = "these keep their value until a restart" if kept else None
        level = logging.WARNING if kept else logging.INFO
        self._write(level, "reload", hash=config_hash, changed=changed, kept=list(kept) or None, why=why)

    def reload_failed(self, faults: Sequence[str]) -> None:
        """The settings in force stay, because the changed file has these faults."""
        self._write(logging.ERROR, "reload_failed", faults=list(faults))

    def state(self, what: str, path: str, why: str) -> None:
        """The state file was ignored or not written; kvguard goes on without."""
        self._write(logging.WARNING, "state_file", state=what, path=path, why=why)

    def fault(self, request_id: str, error: Exception) -> None:
        """An error of kvguard's own: its type and where, never what it says, which may quote a request."""
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]
        self._write(logging.ERROR, "fault", request_id=request_id, error=type(error).__name__, at=places[-3:])

    def _due(self, backend: str, condition: str, now: float) -> bool:
        """Whether it is time to say it, and from now on said."""
        last = self._reminded.get((backend, condition))
        due = last is None or now - last >= self.remind_seconds
        if due:
            self._reminded[backend, condition] = now
        return due

    def _was_warned(self, backend: str) -> bool:
        """Whether anything was said that holds no more; it may be said again at once."""
        warned = [key for key in self._reminded if key[0] == backend]
        for key in warned:
            del self._reminded[key]
        return bool(warned)

    def _write(self, level: int, event: str, **fields: object) -> None:
        present = {name: value for name, value in fields.items() if value is not None}
        self.logger.log(level, event, extra={"fields": present})


def _sampled(request_id: str, share: float) -> bool:
    return share > 0 and zlib.crc32(request_id.encode()) < share * 2**32


def _alarming(verdict: ThresholdVerdict) -> bool:
    single = verdict.state is ThresholdState.SINGLE_REQUEST and verdict.basis is Basis.SEEN
    return single or verdict.state is ThresholdState.UNREACHABLE


def rounded(ratios: Ratios | None) -> dict[str, float] | None:
    """Ratios for a log line or a page, three digits, unknown ones left out."""
    if ratios is None:
        return None
    values = {name: getattr(ratios, name) for name in ("observed", "projected", "reserved", "peak")}
    return {name: round(value, 3) for name, value in values.items() if value is not None}
