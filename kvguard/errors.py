"""Broken input and broken peers. Refusals are values (`admission.decision.Reject`), not exceptions.

KvguardError
  InvalidRequest        the client sent something that cannot be read as a request
  SettingsError         the configuration has faults; all of them at once
  DiscoveryError        the addresses behind a backend's name could not be found out
  UpstreamError
    UpstreamUnreachable   no connection could be made; the request was never sent
    UpstreamPoolExhausted no connection came free in time; the request was never sent
    UpstreamBroken        the connection died after the request was sent
    UpstreamTimeout       the backend was silent for longer than the idle limit
"""

from collections.abc import Sequence


class KvguardError(Exception):
    """Root of everything kvguard raises on purpose."""


class InvalidRequest(KvguardError):
    """A request body that cannot be read. `param` names the field at fault, if one is."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class SettingsError(KvguardError):
    """Every fault of a configuration, one line each. `sound` is what could be made of the rest, None where nothing
    could; what it says of the sections in `doubtful` is not what was meant.
    """

    def __init__(self, faults: Sequence[str], *, sound: object = None, doubtful: frozenset[str] = frozenset()) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)
        self.sound = sound
        self.doubtful = doubtful

    def beside(self, faults: Sequence[str]) -> "SettingsError":
        """The same with further faults before its own."""
        return SettingsError((*faults, *self.faults), sound=self.sound, doubtful=self.doubtful)


class DiscoveryError(KvguardError):
    """Why looking up a backend's name gave no addresses, in words for the log."""


class UpstreamError(KvguardError):
    """A backend did not do its part."""


class UpstreamUnreachable(UpstreamError):
    """No connection to the backend."""


class UpstreamPoolExhausted(UpstreamError):
    """Every permitted connection to the backend is in use."""


class UpstreamBroken(UpstreamError):
    """The backend closed or corrupted the connection before its answer was complete."""


class UpstreamTimeout(UpstreamError):
    """The backend sent nothing for too long."""
