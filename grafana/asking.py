"""Puts the queries of panels to a Prometheus."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from grafana.answers import Series, Shown
from grafana.panel import Json
from grafana.reading import choices, filled, panels


class Source(Protocol):
    """A Prometheus: what it says now, and what it said over the last so many seconds."""

    def query(self, expression: str) -> Sequence[Series]: ...

    def query_range(self, expression: str, *, seconds: float, step: float) -> Sequence[Series]: ...


def ask(source: Source, dashboard: Json, *, rows: Sequence[str], seconds: float) -> list[Shown]:
    """The panels of these rows, as somebody sees them who opens the dashboard now and looks at the last `seconds`."""
    values = choices(dashboard) | {"__range": f"{seconds:.0f}s"}
    step = max(1.0, seconds / 300)
    shown = []
    for panel in panels_of(dashboard, rows):
        asked = [(filled(target["expr"], values), target["instant"]) for target in panel["targets"]]
        answers = (
            source.query(expression) if instant else source.query_range(expression, seconds=seconds, step=step)
            for expression, instant in asked
        )
        shown.append(Shown(panel=panel, answers=tuple(answers)))
    return shown


def panels_of(dashboard: Json, rows: Sequence[str]) -> Iterator[Json]:
    """The panels of these rows, from the top."""
    headings = {panel["gridPos"]["y"]: panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"}
    for panel in panels(dashboard):
        above = max(y for y in headings if y < panel["gridPos"]["y"])
        if headings[above] in rows:
            yield panel
