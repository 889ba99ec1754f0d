"""A dashboard as read back from its JSON: its panels, and their expressions with the variables put in."""

import json
import string
from collections.abc import Iterator, Mapping
from pathlib import Path

from grafana.panel import Json

# As Grafana puts them in for a Prometheus that is scraped once a second.
INTERVALS = {"__rate_interval": "10s", "__range": "120s"}


def read(file: Path) -> Json:
    """The dashboard in a file."""
    result: Json = json.loads(file.read_text())
    return result


def panels(dashboard: Json) -> Iterator[Json]:
    """Every panel that shows something, those of folded rows too."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def choices(dashboard: Json) -> dict[str, str]:
    """What each variable puts into an expression as long as its reader has chosen nothing."""
    result = dict(INTERVALS)
    for variable in dashboard["templating"]["list"]:
        match variable["type"]:
            case "query":
                result[variable["name"]] = variable["allValue"]
            case "custom":
                result[variable["name"]] = variable["current"]["value"]
    return result


def filled(expression: str, values: Mapping[str, str]) -> str:
    """The expression as Prometheus is asked it. Raises KeyError for a variable that there is not."""
    return string.Template(expression).substitute(values)
