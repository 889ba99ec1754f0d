"""What Prometheus answered to a panel's queries, under the names, colours and units the panel gives it."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from grafana.panel import Json

GRAY = "#8e9297"
COLOURS = {
    "green": "#73bf69",
    "yellow": "#e0b400",
    "orange": "#ff9830",
    "red": "#f2495c",
    "purple": "#b877d9",
    "blue": "#5794f2",
    "gray": GRAY,
    "light-purple": "#ca95e5",
}
PALETTE = ("#73bf69", "#e0b400", "#5794f2", "#ff9830", "#b877d9", "#56d4c8", "#f2495c", "#8ab8ff")


class Series(Protocol):
    """One series of an answer: its labels, and its values by time, at least one."""

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def points(self) -> Sequence[tuple[float, float]]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A panel, and what each of its queries was answered: over a time, or once where it shows the last value only."""

    panel: Json
    answers: tuple[Sequence[Series], ...]

    @property
    def defaults(self) -> Json:
        result: Json = self.panel["fieldConfig"]["defaults"]
        return result

    def curves(self) -> list["Curve"]:
        """Every series that has a number, by name."""
        named = sorted(self._named(), key=lambda pair: pair[0])
        return [self._curve(number, name, series) for number, (name, series) in enumerate(named)]

    def _named(self) -> Iterator[tuple[str, Series]]:
        for target, series in zip(self.panel["targets"], self.answers, strict=True):
            for each in series:
                if any(math.isfinite(value) for _, value in each.points):
                    yield _legend(target["legendFormat"], each.labels) or self.panel["title"], each

    def _curve(self, number: int, name: str, series: Series) -> "Curve":
        style = next((o for o in self.panel["fieldConfig"]["overrides"] if o["matcher"]["options"] == name), None)
        wanted = {each["id"]: each["value"] for each in style["properties"]} if style else {}
        colour = wanted.get("color", {}).get("fixedColor")
        return Curve(
            name=name,
            labels=series.labels,
            points=series.points,
            colour=COLOURS[colour] if colour else PALETTE[number % len(PALETTE)],
            fixed=colour is not None,
            width=wanted.get("custom.lineWidth", 1),
            dashed="custom.lineStyle" in wanted,
            band_from=wanted.get("custom.fillBelowTo", ""),
        )

    def meaning(self, value: float) -> tuple[str, str]:
        """The words for a value and its colour: of its own, or of the step it is past."""
        for mapping in self.defaults["mappings"]:
            found = mapping["options"].get(f"{value:g}") if mapping["type"] == "value" else None
            if found:
                return found["text"], COLOURS[found["color"]]
        if math.isnan(value):
            return self.defaults["noValue"], GRAY
        past = [
            step for step in self.defaults["thresholds"]["steps"] if step["value"] is None or value >= step["value"]
        ]
        return formatted(value, self.defaults["unit"], self.defaults.get("decimals")), COLOURS[past[-1]["color"]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A series as it is drawn. Its colour is `fixed` where the panel says so, else one of the palette."""

    name: str
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    colour: str
    fixed: bool = False
    width: int = 1
    dashed: bool = False
    band_from: str = ""

    @property
    def last(self) -> float:
        """The last number there is."""
        return next(value for _, value in reversed(self.points) if math.isfinite(value))


def _legend(pattern: str, labels: Mapping[str, str]) -> str:
    if pattern == "__auto":
        return ", ".join(labels.values())
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), pattern).strip()


def formatted(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit, as short as Grafana writes it."""
    match unit:
        case "percentunit":
            return f"{value * 100:.{decimals or 0}f} %"
        case "s":
            return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")))
        case "bytes":
            return _scaled(value, ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")))
        case "reqps":
            return f"{value:.3g} req/s"
        case "ops":
            return f"{value:.3g} /s"
    return _scaled(value, ((1e6, "M"), (1e3, "K"), (1.0, "")))


def _scaled(value: float, steps: Sequence[tuple[float, str]]) -> str:
    if value == 0:
        return f"0 {steps[0][1]}" if steps[0][1] == "s" else "0"
    size, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{value / size:.3g} {name}".strip()
