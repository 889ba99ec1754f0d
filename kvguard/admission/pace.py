"""How fast answers are generated, going by the streams that are read."""


class Pace:
    """How fast the streams under way generate, waiting and prefill included. Whole microseconds add up exactly."""

    def __init__(self) -> None:
        self.streams = self.tokens = self._started = 0

    def enter(self, tokens: int, started_at: float, sign: int = 1) -> None:
        """Add a stream that has generated so much, if it is anything, or take it back."""
        if tokens:
            self.streams += sign
            self.tokens += sign * tokens
            self._started += sign * round(1e6 * started_at)

    def leave(self, tokens: int, started_at: float) -> None:
        """Take back what was added."""
        self.enter(tokens, started_at, -1)

    def tokens_per_second(self, now: float) -> float | None:
        """Of one stream; None without any."""
        seconds = (self.streams * round(1e6 * now) - self._started) / 1e6
        return self.tokens / seconds if seconds > 0 else None
