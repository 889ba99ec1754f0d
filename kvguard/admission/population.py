"""Which answers tell how long an answer will get: those like it, and the order in which "like it" is loosened."""

from collections.abc import Iterator
from dataclasses import dataclass

# Model, route, caller, and whether stop sequences were given.
Key = tuple[str, str, str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """What is known of a request before its answer; an empty name stands for everybody.

    `model` is a name the backend lists, never one that only a client knows. `stops` says that the request names stop
    sequences: such answers end sooner.
    """

    model: str = ""
    route: str = ""
    caller: str = ""
    stops: bool = False

    def taught(self) -> tuple[Key, ...]:
        """Every population an answer counts in, each once; what stop sequences cut says nothing of others."""
        return tuple(dict.fromkeys((*self._of_model(self.stops), ("", "", "", self.stops))))

    def asked(self) -> Iterator[Key]:
        """The populations that tell of a request, the most specific first.

        The caller is dropped first, then the route, then the stop sequences, the model last:
        (model, route, caller), (model, route), (model), and the same without stop sequences, then everybody with and
        everybody without them. Answers without stop sequences are longer, so they bound those with.
        """
        for stops in (True, False) if self.stops else (False,):
            yield from self._of_model(stops)
        if self.stops:
            yield "", "", "", True
        yield "", "", "", False

    def _of_model(self, stops: bool) -> tuple[Key, ...]:
        return (
            (self.model, self.route, self.caller, stops),
            (self.model, self.route, "", stops),
            (self.model, "", "", stops),
        )


ANYBODY = Population()
