"""The decision log: one JSON line for each decision, with all it rested on. No prompt, key, header or client's word.

Which requests are in it is decided by their ids alone, so that every replica and every later filter agrees. Lines are
written by a thread; when the disk cannot keep up they are dropped and counted, and no decision waits.
"""

import contextlib
import hashlib
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from kvguard.admission.recorded import DecisionRecord
from kvguard.errors import SettingsError
from kvguard.telemetry.events import DecisionEvent

VERSION: Final = 1
MAX_QUEUED: Final = 1000
_STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLine:
    """One line. `tenant` is None for all whom the settings do not name."""

    version: int = VERSION
    time: float
    request_id: str
    route: str
    tenant: str | None = None
    retry_after_seconds: float | None = None
    decision: DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLogPolicy:
    """Where lines go, the share of requests that have one, and the size at which the file becomes `path.1`."""

    path: Path
    sample: float = 1.0
    max_bytes: int = 256 * 1024 * 1024


class DecisionFile:
    """Takes events and writes those that have a record. `dropped` hears of every line that is lost."""

    def __init__(
        self,
        policy: DecisionLogPolicy,
        *,
        wall: Callable[[], float],
        tenants: Callable[[], frozenset[str]],
        dropped: Callable[[], None],
    ) -> None:
        self._policy = policy
        self._wall = wall
        self._tenants = tenants
        self._dropped = dropped
        self._lines: queue.Queue[DecisionLine | None] = queue.Queue(MAX_QUEUED)

    def decision(self, event: DecisionEvent) -> None:
        """Keep a decision, if there is a record of it and its request is in the sample."""
        if event.record is None or not in_sample(event.request_id, self._policy.sample):
            return
        line = DecisionLine(
            time=self._wall(),
            request_id=event.request_id,
            route=event.route,
            tenant=event.tenant if event.tenant in self._tenants() else None,
            retry_after_seconds=event.retry_after_seconds,
            decision=event.record,
        )
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped()

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Write while the context lasts, and at its end what is left. Raises SettingsError when it cannot begin."""
        check_appendable(self._policy.path)
        writer = threading.Thread(target=self._write_all, name="decision-log", daemon=True)
        writer.start()
        try:
            yield
        finally:
            with contextlib.suppress(queue.Full):
                self._lines.put(None, timeout=_STOP_SECONDS)
                writer.join(timeout=_STOP_SECONDS)

    def _write_all(self) -> None:
        file = _RotatedFile(self._policy.path, self._policy.max_bytes)
        while (line := self._lines.get()) is not None:
            try:
                file.write(msgspec.json.encode(line) + b"\n")
            except OSError:
                file.close()
                self._dropped()
        file.close()


class _RotatedFile:
    """A file that is appended to and becomes `path.1`, over what was there, before it gets larger than `max_bytes`."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file: BinaryIO | None = None

    def write(self, line: bytes) -> None:
        """Append a whole line and hand it over to the system. Raises OSError."""
        file = self._file = self._file or self._path.open("ab")
        if file.tell() and file.tell() + len(line) > self._max_bytes:
            self.close()
            self._path.replace(rotated(self._path))
            file = self._file = self._path.open("ab")
        file.write(line)
        file.flush()

    def close(self) -> None:
        """Close; the next line opens it again."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None


def rotated(path: Path) -> Path:
    """Where the lines before those of `path` are."""
    return path.with_name(f"{path.name}.1")


def in_sample(request_id: str, share: float) -> bool:
    """Whether a request is among the `share` (0..1) that is kept."""
    number = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big")
    return number < share * 2**64


def check_appendable(path: Path) -> None:
    """Try what writing needs. Raises SettingsError when it cannot be done there."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(None, "it is no regular file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.exists():
            path.open("ab").close()
    except OSError as error:
        raise SettingsError([f"decision_log.path: {path} cannot be written: {error.strerror or error}"]) from error
