"""What a backend has lately refused, so that of many backends each need not be weighed again for every refusal.

Whoever asks for at least as much is refused as well, as long as nothing has made room there: no answer has ended, no
prompt was counted anew and no gauge was read. That what is under way has grown meanwhile only takes room away; what
time alone may change can wait for the next look at the gauge.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from kvguard.admission.decision import AdmissionPolicy, Reject

_MOST_KINDS: Final = 256


class Least(NamedTuple):
    """The least that a request can be admitted with: its prompts, and output of each sequence."""

    prompt_tokens: int = 0
    output_tokens: int = 0

    def at_least(self, other: "Least") -> bool:
        """Whether it is as much as another in every respect."""
        return self.prompt_tokens >= other.prompt_tokens and self.output_tokens >= other.output_tokens


@dataclass(frozen=True, slots=True)
class _Bar:
    # Bars are found by the identity of the policy, which must live as long.
    policy: AdmissionPolicy
    least: Least
    reject: Reject


class Bars:
    """Those of one backend, by kinds of requests: what is alike but for its size under one policy."""

    def __init__(self) -> None:
        self._state: tuple[int, int] | None = None
        self._bars: dict[str, _Bar] = {}

    def find(self, kind: str, least: Least, state: tuple[int, int]) -> Reject | None:
        """Why a request is refused for sure; None when it has to be weighed. `state` counts what made room so far."""
        bar = self._bars.get(kind) if state == self._state else None
        return bar.reject if bar is not None and least.at_least(bar.least) else None

    def put(self, kind: str, policy: AdmissionPolicy, least: Least, reject: Reject, state: tuple[int, int]) -> None:
        """A request was weighed and refused."""
        if state != self._state or len(self._bars) >= _MOST_KINDS:
            self._state = state
            self._bars.clear()
        self._bars[kind] = _Bar(policy, least, reject)

    def clear(self) -> None:
        """Forget everything: other rules are in force."""
        self._bars.clear()
