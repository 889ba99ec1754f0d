"""Brings backends into the pool and takes them out again, each with the poller that asks it how full it is.

A backend that discovery no longer finds gets no new requests, and is gone once its last answer has ended.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping

import httpx

from kvguard.admission.lengths import OutputLengths
from kvguard.backend_sections import BackendSettings
from kvguard.backends import LayoutOf, build_backend, layout_of_entry, reading_of
from kvguard.clock import Clock
from kvguard.discovery import Discovery, Resolver
from kvguard.poller import Poller, PollPolicy
from kvguard.pool.backend import Backend
from kvguard.proxy.controller import Controller
from kvguard.settings import Settings
from kvguard.telemetry.reporter import Reporter


class Members:
    """The pool's members. `settings` may be exchanged; who joins from then on goes by the new ones.

    `lengths` has what is known of answers by the name of a setting: all servers behind one name learn together.
    `ready` is set once everybody who was there at the start has been asked; `on_asked` is called whenever anybody was.
    """

    def __init__(
        self,
        controller: Controller,
        lengths: Mapping[str, OutputLengths],
        reporter: Reporter,
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._controller = controller
        self._lengths = lengths
        self._reporter = reporter
        self._clock = clock
        self.settings = settings
        self.ready = asyncio.Event()
        self._unasked: set[str] = set()
        # Reading the certificates of all authorities holds everything up for as long as a hundred scrapes.
        self._certificates = httpx.create_ssl_context(trust_env=False)
        self._layouts: dict[str, LayoutOf | None] = {}
        self.pollers: dict[str, Poller] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.on_asked: Callable[[], None] = _nothing

    def start(self, backends: Iterable[BackendSettings]) -> None:
        """Let these join, and wait for none else."""
        for chosen in backends:
            self._unasked.add(chosen.label)
            self._join(chosen, chosen)

    def found(self, entry: BackendSettings, members: Iterable[BackendSettings]) -> None:
        """From now on these servers, and no others, are behind the name of this setting."""
        wanted = {chosen.label: chosen for chosen in members}
        for backend in self._controller.backends:
            if backend.group == entry.label:
                backend.health.leaving = wanted.pop(backend.name, None) is None
        for chosen in wanted.values():
            if not self.ready.is_set():
                self._unasked.add(chosen.label)
            self._join(chosen, entry)
            self._reporter.joined(chosen.label)
        self.sweep()

    def sweep(self) -> None:
        """Take out those that are leaving and have nothing in flight any more."""
        for backend in self._controller.backends:
            if backend.health.leaving and not backend.ledger.live:
                self._controller.pool.remove(backend)
                del self.pollers[backend.name]
                self._tasks.pop(backend.name).cancel()
                self._reporter.left(backend.name)

    def discover(self, entries: Iterable[BackendSettings], resolver: Resolver, interval_seconds: float) -> None:
        """Look up the names of these for as long as it lasts."""
        for entry in entries:
            discovery = Discovery(
                entry.label, entry.host, resolver, self._reporter, self._clock, interval_seconds=interval_seconds
            )
            self._unasked.add(entry.label)
            looking = discovery.run(
                functools.partial(self._addresses, entry), functools.partial(self._heard, entry.label)
            )
            self._tasks[entry.label] = asyncio.create_task(looking)

    def _addresses(self, entry: BackendSettings, addresses: frozenset[str]) -> None:
        self.found(entry, [entry.at(address) for address in sorted(addresses)])

    async def close(self) -> None:
        """Ask nobody any more."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def _join(self, chosen: BackendSettings, entry: BackendSettings) -> None:
        if entry.label not in self._layouts:  # the model of an entry is read once, however many servers there are
            self._layouts[entry.label] = layout_of_entry(entry)
        layout, lengths = self._layouts[entry.label], self._lengths[entry.label]
        backend = build_backend(self.settings, chosen, layout, lengths)
        backend.group = entry.label
        self._controller.pool.add(backend)
        telemetry = self.settings.telemetry
        policy = PollPolicy(
            interval_seconds=telemetry.interval_seconds,
            timeout_seconds=telemetry.timeout_seconds,
            learn_context=chosen.context_tokens is None,
        )
        poller = Poller(backend, reading_of(chosen), self._reporter, self._clock, policy, self._certificates)
        self.pollers[backend.name] = poller
        self._tasks[backend.name] = asyncio.create_task(poller.run(functools.partial(self._asked, backend)))

    def _asked(self, backend: Backend) -> None:
        """A backend has just been asked, with or without success."""
        self._controller.retier(self._clock.now(), (backend,))
        self._controller.on_freed()
        geometry = backend.occupancy.policy.capacity.layout_of is not None
        self._reporter.sizing(backend.name, backend.review(self._controller.policy.tiers), geometry=geometry)
        self._heard(backend.name)
        self.sweep()
        self.on_asked()

    def troubles(self) -> dict[str, str]:
        """What keeps backends from giving a gauge, by their names; nothing of those that do."""
        return {name: poller.trouble for name, poller in self.pollers.items() if poller.trouble}

    def _heard(self, name: str) -> None:
        self._unasked.discard(name)
        if not self._unasked:
            self.ready.set()


def _nothing() -> None:
    """What happens when nobody wants to hear of it."""
