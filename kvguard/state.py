"""What is kept over a restart: learned lengths, in one JSON file. Owns the file; what is in it is the core's.

A file that cannot be used is no reason not to start, and one that cannot be written none to stop.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from kvguard.admission.lengths import OutputLengths
from kvguard.admission.saved import SavedLengths
from kvguard.clock import Clock
from kvguard.errors import SettingsError
from kvguard.telemetry.reporter import Reporter

MAX_STATE_BYTES: Final = 64 * 1024 * 1024


class StateFile:
    """Learned lengths, by the names of backends, in a file that is replaced as a whole."""

    def __init__(self, path: Path, lengths: Mapping[str, OutputLengths], reporter: Reporter) -> None:
        self._path = path
        self._lengths = lengths
        self._reporter = reporter
        self._saved_version = -1
        # One thread, so that of two saves the later one stays.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="state")

    def load(self) -> None:
        """Start from what an earlier run has learned; a file that cannot be used is reported and ignored."""
        try:
            saved = msgspec.json.decode(_bounded(self._path), type=SavedLengths)
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            self._reporter.state("ignored", str(self._path), _why(error))
            return
        for name, lengths in self._lengths.items():
            lengths.restore(saved.backends.get(name, ()))
        self._saved_version = self._version

    @contextlib.asynccontextmanager
    async def kept(self, clock: Clock, interval_seconds: float) -> AsyncIterator[None]:
        """Load now, save once an interval while the context lasts, and at its end. Raises SettingsError."""
        check_writable(self._path)
        self.load()
        task = asyncio.create_task(self._save_for_ever(clock, interval_seconds))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            await self.save()
            self._writer.shutdown()

    async def _save_for_ever(self, clock: Clock, interval_seconds: float) -> None:
        while True:
            await clock.sleep(interval_seconds)
            await self.save()

    async def save(self) -> None:
        """Write what is known by now, if anything is new; a failure is reported and tried again at the next save."""
        version = self._version
        if version == self._saved_version:
            return
        learned = {name: lengths.copy() for name, lengths in self._lengths.items()}
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, _write, self._path, learned)
        except OSError as error:
            self._reporter.state("not_written", str(self._path), _why(error))
        else:
            self._saved_version = version

    @property
    def _version(self) -> int:
        return sum(lengths.version for lengths in self._lengths.values())


def check_writable(path: Path) -> None:
    """Try what a save does. Raises SettingsError when it cannot be done there."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(None, "it is no regular file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SettingsError([f"forecast.state_file: {path} cannot be written: {_why(error)}"]) from error


def _why(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return text or type(error).__name__


def _bounded(path: Path) -> bytes:
    """The file's bytes. Raises ValueError when they are too many."""
    with path.open("rb") as file:
        content = file.read(MAX_STATE_BYTES + 1)
    if len(content) > MAX_STATE_BYTES:
        raise ValueError(f"it is larger than {MAX_STATE_BYTES} bytes")
    return content


def _write(path: Path, learned: Mapping[str, OutputLengths]) -> None:
    """Replace the file as a whole: a crash leaves the old one or the new one."""
    saved = SavedLengths(backends={name: lengths.saved() for name, lengths in learned.items()})
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(saved))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
