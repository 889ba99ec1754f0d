"""Takes over changes of the settings file while kvguard runs: all of them at once, or none when there is a fault.

The file is looked at by content, through whatever links its path goes, so the swap of a mounted ConfigMap is seen.
Settings that objects were built from keep their value, and a warning names them.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvguard.clock import Clock
from kvguard.errors import SettingsError
from kvguard.policies import config_hash
from kvguard.settings import Settings
from kvguard.telemetry.reporter import Reporter

SECTIONS: Final = (
    "mode",
    "share",
    "routing",
    "health",
    "tiers",
    "degrade",
    "classes",
    "overrides",
    "tenants",
    "identity",
    "reject",
    "waiting",
    "telemetry",
    "signals",
    "forecast",
    "limits",
    "streams",
)
# Parts of those that pollers and the state file were built from.
_FIXED: Final = {
    "telemetry": ("interval_seconds", "timeout_seconds"),
    "forecast": ("state_file", "state_interval_seconds"),
}
# A file that is being written is left until it stays as it is.
SETTLE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """Where settings come from, and how all sources are read anew; `load` raises SettingsError."""

    path: Path
    load: Callable[[], Settings]


class Reloader:
    """Keeps the settings in force up to date with the file. `put` puts settings in place, or raises SettingsError."""

    def __init__(
        self,
        file: SettingsFile,
        settings: Settings,
        put: Callable[[Settings], None],
        reporter: Reporter,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self._file = file
        self._put = put
        self._reporter = reporter
        self._clock = clock
        # Nothing seen: what changed between reading the settings and the first look is noticed then.
        self._seen = b""
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Read the settings now, whether the file changed or not."""
        self._hurry.set()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            if await self._pause() or await self._settled():
                self.reload()

    async def _pause(self) -> bool:
        """Wait until it is time to look; True when somebody is in a hurry."""
        waits: set[asyncio.Task[Any]] = {asyncio.create_task(self._hurry.wait())}
        seconds = self.settings.reload.interval_seconds
        if seconds:
            waits.add(asyncio.create_task(self._clock.sleep(seconds)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        hurried = self._hurry.is_set()
        self._hurry.clear()
        return hurried

    async def _settled(self) -> bool:
        """Whether the file is another than before, once it stays as it is."""
        if not self._changed():
            return False
        await self._clock.sleep(SETTLE_SECONDS)
        while self._changed():
            await self._clock.sleep(SETTLE_SECONDS)
        return True

    def _changed(self) -> bool:
        """Whether the file is another than at the last look."""
        before, self._seen = self._seen, _fingerprint(self._file.path)
        return before != self._seen

    def reload(self) -> None:
        """Read every source and put what changed in place; on a fault nothing changes."""
        try:
            wanted = self._file.load()
            new = merged(self.settings, wanted)
            if new != self.settings:
                self._put(new)
        except SettingsError as error:
            self._reporter.reload_failed(error.faults)
            return
        except Exception as error:  # noqa: BLE001  a file nobody foresaw must not end the following
            self._reporter.reload_failed((type(error).__name__,))
            return
        changed = new != self.settings
        self.settings = new
        self._reporter.reloaded(config_hash(new), changed=changed, kept=tuple(differences(new, wanted)))


def _fingerprint(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return hashlib.sha256(path.read_bytes()).digest()
    return b"unreadable"


def merged(old: Settings, wanted: Settings) -> Settings:
    """What is wanted as far as it can be had without a restart; the rest as it was."""
    update: dict[str, Any] = {name: getattr(wanted, name) for name in SECTIONS}
    for section, names in _FIXED.items():
        kept = {name: getattr(getattr(old, section), name) for name in names}
        update[section] = update[section].model_copy(update=kept)
    modes = {backend.label: backend.mode for backend in wanted.backends}
    update["backends"] = tuple(
        backend.model_copy(update={"mode": modes.get(backend.label, backend.mode)}) for backend in old.backends
    )
    return old.model_copy(update=update)


def differences(settings: Settings, wanted: Settings) -> Iterator[str]:
    """Names of the settings that are not as wanted."""
    have, want = settings.model_dump(mode="json"), wanted.model_dump(mode="json")
    for section in have:
        if not isinstance(have[section], dict):
            if have[section] != want[section]:
                yield section
            continue
        yield from (f"{section}.{name}" for name in have[section] if have[section][name] != want[section][name])
