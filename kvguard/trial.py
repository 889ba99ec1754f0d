"""Tries everything that is built from settings, without starting anything: what is wrong is found all at once."""

import contextlib
import functools
from collections.abc import Callable, Iterator

from kvguard.backends import build_backend, reading_of
from kvguard.bootstrap import simulated, tracing
from kvguard.counting import build_counter
from kvguard.discovery import Resolver
from kvguard.errors import SettingsError
from kvguard.policies import governance_of
from kvguard.settings import Settings
from kvguard.state import check_writable
from kvguard.telemetry.decision_log import check_appendable


def find_faults(settings: Settings, *, but: frozenset[str] = frozenset()) -> None:
    """Try everything that is built from the settings, `but` nothing from these sections. Raises SettingsError with all
    that cannot be.
    """
    faults: list[str] = []
    for sections, attempt in _attempts(settings):
        if sections & but:
            continue
        try:
            attempt()
        except SettingsError as error:
            faults += error.faults
    if faults:
        raise SettingsError(faults)


def _attempts(settings: Settings) -> Iterator[tuple[set[str], Callable[[], object]]]:
    """What may fail, with the sections it depends on."""
    for build in (functools.partial(build_backend, settings), reading_of, simulated):
        for each in settings.backends:
            yield {"backends"}, functools.partial(build, each)
    yield {"tokens"}, functools.partial(_try_counters, settings)
    yield {"backends", "overrides"}, functools.partial(governance_of, settings)
    if any(each.discovers for each in settings.backends):
        yield {"backends", "discovery"}, functools.partial(Resolver, settings.discovery.policy())
    if settings.forecast.state_file is not None:
        yield {"forecast"}, functools.partial(check_writable, settings.forecast.state_file)
    if settings.tracing.enabled:
        yield {"tracing"}, tracing
    if settings.decision_log.path is not None:
        yield {"decision_log"}, functools.partial(check_appendable, settings.decision_log.path)


def _try_counters(settings: Settings) -> None:
    with contextlib.ExitStack() as stack:
        build_counter(settings.tokens, None, dict, stack)
