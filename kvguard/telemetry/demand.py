"""What refused requests asked for, in tokens, for whoever sizes the fleet."""

from typing import Final

from kvguard.telemetry.events import DecisionEvent

REMEMBERED: Final = 100


class UsualRequest:
    """How many tokens a request asks for, prompt and output, as a mean that forgets: of about the last hundred read."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._read = 0

    def rejected_tokens(self, event: DecisionEvent) -> float:
        """Tokens of a refused request, a usual one where it was refused before it was read; none where no fleet of such
        servers could have served it.
        """
        if event.reason is None or not event.reason.retryable:
            return 0.0
        return _tokens(event) or self._tokens

    def learn(self, event: DecisionEvent) -> None:
        """Take in a decision, if the request was read."""
        tokens = _tokens(event)
        if tokens:
            self._read = min(self._read + 1, REMEMBERED)
            self._tokens += (tokens - self._tokens) / self._read


def _tokens(event: DecisionEvent) -> int:
    return event.prompt_tokens + event.requested_tokens
