"""What the chart has from elsewhere is as it is there. Needs no Helm."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm import generate
from helm.values_file import CHART, VALUES, values
from helm.values_schema import settings_schema
from kvguard import __version__
from kvguard.reload import _FIXED, SECTIONS
from kvguard.settings import Settings

SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("path", generate.FILES, ids=lambda path: path.name)
def test_it_is_up_to_date(path: Path) -> None:
    """Schema, README, rules and dashboard; `make chart` brings them up to date."""
    assert path.read_text() == generate.FILES[path]()


def leaves(node: Any, path: str = "") -> Iterator[str]:
    """Every value of the file that has no section below it."""
    if isinstance(node, dict) and node and path not in {value.name for value in values()}:
        for key, below in node.items():
            yield from leaves(below, f"{path}.{key}".lstrip("."))
    else:
        yield path


def test_every_value_is_described() -> None:
    """In values.yaml, and so in the schema and the README."""
    described = [value.name for value in values()]
    assert list(leaves(yaml.safe_load(VALUES.read_text()))) == described
    assert all(value.description for value in values())


def closed(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, bool]]:
    """Every part with names of its own, and whether it takes no other."""
    if "properties" in node:
        yield path, node.get("additionalProperties") is False
    for key, below in node.get("properties", {}).items():
        yield from closed(below, f"{path}.{key}")


def test_misspelt_values_are_refused() -> None:
    """At every level of the chart's own values and of the settings."""
    parts = dict(closed(SCHEMA)) | {
        name: ok for key, each in SCHEMA["definitions"].items() for name, ok in closed(each, key)
    }
    assert len(parts) > 40
    assert [name for name, ok in parts.items() if not ok] == []


def test_the_schema_has_every_setting() -> None:
    """`config` takes what kvguard does, under the same descriptions."""
    settings, definitions = settings_schema()
    assert SCHEMA["properties"]["config"]["properties"] == settings["properties"]
    assert settings["properties"].keys() == Settings.model_fields.keys()
    assert SCHEMA["definitions"] == definitions


def test_pods_are_replaced_for_what_they_do_not_take_over() -> None:
    """The part the chart leaves out of its checksum is the part kvguard reloads."""
    text = (CHART / "templates" / "_helpers.tpl").read_text()
    (omitted,) = re.findall(r"omit \$config (.*?) -}}", text)
    assert set(re.findall(r'"(\w+)"', omitted)) == {*SECTIONS, "backends"}
    for section, names in _FIXED.items():
        (kept,) = re.findall(rf"pick \(\$config\.{section} \| default dict\) (.*?)\) -}}}}", text)
        assert tuple(re.findall(r'"(\w+)"', kept)) == names


def test_it_installs_this_version() -> None:
    """Unless another tag is asked for."""
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
