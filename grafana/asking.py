"""Puts the queries of panels to a Prometheus."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from grafana.answers import Series, Shown
from grafana.panel import Json
from grafana.reading import choices, filled, panels


class Source(Protocol):
    """A Prometheus: what it says at a time, and what it said over so many seconds before one."""

    def query(self, expression: str, *, at: float) -> Sequence[Series]: ...

    def query_range(self, expression: str, *, seconds: float, step: float, end: float) -> Sequence[Series]: ...


def ask(source: Source, dashboard: Json, *, rows: Sequence[str], start: float, end: float) -> list[Shown]:
    """The panels of these rows, as somebody sees them who opens the dashboard at `end` and looks back to `start`."""
    seconds = end - start
    values, step = choices(dashboard) | {"__range": f"{max(seconds, 1):.0f}s"}, max(1.0, seconds / 300)
    shown = []
    for panel in panels_of(dashboard, rows):
        asked = [(filled(target["expr"], values), target["instant"]) for target in panel["targets"]]
        answers = (
            source.query(expression, at=end)
            if instant
            else source.query_range(expression, seconds=seconds, step=step, end=end)
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
