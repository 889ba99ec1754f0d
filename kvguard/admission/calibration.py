"""Whether forecasts of output lengths hold: each is kept from admission to the end and compared with the answer."""

from collections import Counter
from dataclasses import dataclass, field

from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import remaining_output
from kvguard.admission.lengths import LengthSource, OutputLengths


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthForecast:
    """Tokens an answer was given at admission, and where that comes from."""

    tokens: int
    source: LengthSource


def forecast_of(demand: Demand, lengths: OutputLengths) -> LengthForecast:
    """What is forecast of each sequence of `demand` before its first token.

    The source is CAP whenever the request itself decides: nothing is known, or its cap or least length is the bound.
    """
    tokens = remaining_output(demand, 0, lengths)
    known = None if demand.fixed_length else lengths.known(demand.population, cap=demand.asked_cap, produced=0)
    decided = known is not None and known[0] == tokens != demand.output_cap
    return LengthForecast(tokens=tokens, source=known[1] if known and decided else LengthSource.CAP)


@dataclass(slots=True)
class Calibration:
    """Whole answers by the source of their forecast, and how many of them got longer than forecast."""

    answers: Counter[LengthSource] = field(default_factory=Counter)
    exceeded: Counter[LengthSource] = field(default_factory=Counter)

    def note(self, forecast: LengthForecast, demand: Demand, completion_tokens: int) -> None:
        """Compare one answer with its forecast.

        An answer that its cap cut off before it could outgrow the forecast tells nothing and is left out; so is one of
        several sequences, whose single lengths nobody says.
        """
        cut = demand.output_cap is not None and completion_tokens >= demand.output_cap
        if demand.sequences != 1 or (cut and completion_tokens <= forecast.tokens):
            return
        self.answers[forecast.source] += 1
        self.exceeded[forecast.source] += completion_tokens > forecast.tokens
