"""Panels and rows, and how Grafana spells them. Knows nothing of what is asked or why."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
NO_TRAFFIC = "No traffic"


class Kind(enum.Enum):
    """How a panel shows what it gets; the value is Grafana's name."""

    LINES = "timeseries"
    STATES = "state-timeline"
    NUMBERS = "stat"
    BARS = "bargauge"
    TABLE = "table"


class Colour(enum.Enum):
    """Colours that carry a judgement or keep a series the same everywhere; by Grafana's names."""

    CALM = "green"
    TRIM = "yellow"
    RESTRICT = "orange"
    REJECT = "red"
    FAULT = "purple"
    PLAIN = "blue"
    FORECAST = "light-purple"
    DIM = "gray"


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One expression. `legend` may name labels as `{{label}}`."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """How the series of one name are drawn, over the panel's own way. One with a `band_from` is no line but the upper
    end of a band, which reaches down to the series of that name.
    """

    colour: Colour
    dashed: bool = False
    width: int = 1
    band_from: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """What a value is called, and in which colour."""

    text: str
    colour: Colour


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A panel. `bounds` are the ends of its axis, `steps` the values from which a colour holds, `repeat` is a variable
    that has a panel for each of its values, `nothing` the words for no data.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    width: int = 8
    height: int = 8
    bounds: tuple[float | None, float | None] = (0, None)
    decimals: int | None = None
    stacked: bool = False
    styles: Mapping[str, Style] | None = None
    meanings: Mapping[float, Meaning] | None = None
    steps: tuple[tuple[float, Colour], ...] = ()
    columns: Mapping[str, str] | None = None
    repeat: str = ""
    nothing: str = NO_TRAFFIC


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Panels under one heading, folded away where few need them."""

    title: str
    panels: tuple[Panel, ...]
    folded: bool = False


def laid_out(rows: Sequence[Row]) -> list[Json]:
    """Every row and its panels, from the top, left to right, numbered from 1."""
    numbers = iter(range(1, 1000))
    result, top = [], 0
    for row in rows:
        heading = {"id": next(numbers), "type": "row", "title": row.title, "collapsed": row.folded}
        heading |= {"gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}, "panels": []}
        placed, top = _placed(row.panels, top + 1, numbers)
        heading["panels"] = placed if row.folded else []
        result += [heading, *([] if row.folded else placed)]
    return result


def _placed(panels: Sequence[Panel], top: int, numbers: Iterator[int]) -> tuple[list[Json], int]:
    placed, left, tallest = [], 0, 0
    for panel in panels:
        if left + panel.width > WIDTH:
            left, top, tallest = 0, top + tallest, 0
        place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
        placed.append({"id": next(numbers), **_panel(panel), "gridPos": place})
        left, tallest = left + panel.width, max(tallest, panel.height)
    return placed, top + tallest


def _panel(panel: Panel) -> Json:
    result: Json = {
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": [_target(query, chr(ord("A") + n), panel) for n, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_overrides(panel))},
        "options": _options(panel),
    }
    if panel.repeat:
        result |= {"repeat": panel.repeat, "repeatDirection": "h", "maxPerRow": 2}
    if panel.columns:
        result["transformations"] = list(_columns(panel.columns))
    return result


def _target(query: Query, letter: str, panel: Panel) -> Json:
    now = panel.kind in (Kind.NUMBERS, Kind.BARS, Kind.TABLE)
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "legendFormat": query.legend or "__auto",
        "format": "table" if panel.kind is Kind.TABLE else "time_series",
        "instant": now,
        "range": not now,
    }


def _defaults(panel: Panel) -> Json:
    low, high = panel.bounds
    steps = [{"color": colour.value, "value": value} for value, colour in panel.steps]
    first = {"color": Colour.CALM.value if steps else Colour.PLAIN.value, "value": None}
    result: Json = {
        "unit": panel.unit,
        "noValue": panel.nothing,
        "mappings": list(_mappings(panel)),
        "thresholds": {"mode": "absolute", "steps": [first, *steps]},
        "color": {"mode": "palette-classic" if panel.kind is Kind.LINES else "thresholds"},
        "custom": _custom(panel),
    }
    result |= {} if low is None else {"min": low}
    result |= {} if high is None else {"max": high}
    return result | ({} if panel.decimals is None else {"decimals": panel.decimals})


def _mappings(panel: Panel) -> Iterator[Json]:
    if panel.meanings:
        names = {
            f"{value:g}": {"text": meaning.text, "color": meaning.colour.value, "index": number}
            for number, (value, meaning) in enumerate(panel.meanings.items())
        }
        yield {"type": "value", "options": names}
    yield {"type": "special", "options": {"match": "nan", "result": {"text": panel.nothing, "color": Colour.DIM.value}}}


def _custom(panel: Panel) -> Json:
    match panel.kind:
        case Kind.LINES:
            return {
                "drawStyle": "line",
                "lineInterpolation": "linear",
                "lineWidth": 1,
                "fillOpacity": 30 if panel.stacked else 0,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            }
        case Kind.STATES:
            return {"fillOpacity": 80, "lineWidth": 0}
        case Kind.TABLE:
            return {"align": "auto", "cellOptions": {"type": "auto"}}
    return {}


def _overrides(panel: Panel) -> Iterator[Json]:
    for name, style in (panel.styles or {}).items():
        properties: list[Json] = [{"id": "color", "value": {"mode": "fixed", "fixedColor": style.colour.value}}]
        if panel.kind is Kind.LINES and not style.band_from:
            properties.append({"id": "custom.lineWidth", "value": style.width})
        if style.dashed:
            properties.append({"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}})
        if style.band_from:
            properties += [
                {"id": "custom.lineWidth", "value": 0},
                {"id": "custom.fillBelowTo", "value": style.band_from},
                {"id": "custom.fillOpacity", "value": 15},
                {"id": "custom.hideFrom", "value": {"legend": True, "tooltip": True, "viz": False}},
            ]
        yield {"matcher": {"id": "byName", "options": name}, "properties": properties}


def _options(panel: Panel) -> Json:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    match panel.kind:
        case Kind.LINES:
            table = {
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
                "calcs": ["mean", "max", "lastNotNull"],
            }
            return {"legend": table, "tooltip": {"mode": "multi", "sort": "desc"}}
        case Kind.STATES:
            bottom = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
            return {"showValue": "auto", "mergeValues": True, "rowHeight": 0.8, "legend": bottom}
        case Kind.NUMBERS:
            # A whole tile in a colour is a judgement.
            colour = "background" if panel.meanings or panel.steps else "value"
            look = {"graphMode": "none", "justifyMode": "auto", "textMode": "value_and_name"}
            return {"reduceOptions": last, "orientation": "auto", "colorMode": colour, **look}
        case Kind.BARS:
            return {"reduceOptions": last, "orientation": "horizontal", "displayMode": "basic", "showUnfilled": True}
        case Kind.TABLE:
            return {"showHeader": True, "cellHeight": "sm"}


def _columns(columns: Mapping[str, str]) -> Iterator[Json]:
    """Keeps these labels of the answers, in this order and by these names, and nothing else."""
    yield {"id": "merge", "options": {}}
    yield {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}}
    order = {name: number for number, name in enumerate(columns)}
    yield {"id": "organize", "options": {"indexByName": order, "renameByName": dict(columns), "excludeByName": {}}}
