"""Writes what the chart has from elsewhere: `make chart`. A test compares it.

The schema of its values and the table in its README are made of values.yaml and the settings model; rules and dashboard
are copies, because a chart reads no file outside of itself.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from helm.values_file import CHART, Value, values
from helm.values_schema import schema

ROOT: Final = Path(__file__).parents[1]
COPIES: Final = {
    CHART / "files" / "kvguard.rules.yaml": ROOT / "deploy" / "prometheus" / "kvguard.rules.yaml",
    CHART / "files" / "kvguard.json": ROOT / "grafana" / "kvguard.json",
}
README: Final = CHART / "README.md"
_TABLE: Final = "## Values\n"


def readme() -> str:
    """The README with its table as values.yaml has it."""
    return README.read_text().partition(_TABLE)[0] + _TABLE + "\n" + table()


def table() -> str:
    """A row for every value."""
    rows = [f"| `{value.name}` | `{_shown(value)}` | {_cell(value.description)} |" for value in values()]
    return "\n".join(["| Value | Default | What it is |", "|---|---|---|", *rows]) + "\n"


def _shown(value: Value) -> str:
    return _cell(json.dumps(value.default))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


FILES: Final[dict[Path, Callable[[], str]]] = {
    CHART / "values.schema.json": lambda: json.dumps(schema(), indent=1) + "\n",
    README: readme,
    **{copy: source.read_text for copy, source in COPIES.items()},
}


def main() -> None:
    """Write all of it."""
    for path, content in FILES.items():
        path.write_text(content())


if __name__ == "__main__":
    main()
