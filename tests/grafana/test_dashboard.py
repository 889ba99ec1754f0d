"""The dashboard as a whole: one source, and nothing in it that holds for one Grafana only."""

import json
import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import pytest

from grafana.generate import FILE, dashboard, written
from grafana.panel import WIDTH
from grafana.reading import panels, read
from grafana.states import CONDITIONS, PHASES, STANDINGS, TELEMETRY, TIERS
from kvguard.admission.condition import EngineState
from kvguard.admission.occupancy import TelemetryState
from kvguard.admission.tiers import Tier
from kvguard.pool.health import Standing
from kvguard.telemetry.events import Phase
from kvguard.telemetry.metrics import SLOW

BOARD = read(FILE)
PANELS = list(panels(BOARD))
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
# Grafana's own, besides those of the dashboard.
BUILT_IN = {"__rate_interval", "__range", "__all"}


def every(name: str, node: Any = BOARD) -> Iterator[Any]:
    """Every value under this name, however deep."""
    if isinstance(node, list):
        for part in node:
            yield from every(name, part)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == name:
                yield value
            yield from every(name, value)


def test_the_file_is_what_the_generator_writes() -> None:
    """`make dashboard` brings it up to date."""
    assert FILE.read_text() == written()


def test_writing_it_twice_changes_nothing() -> None:
    """Numbers and order come from the source alone."""
    assert dashboard() == dashboard() == json.loads(written())


def test_a_site_can_import_it_as_it_is() -> None:
    """It has an address of its own, a schema that Grafana 10 knows, and nobody edits what is provisioned."""
    wanted = {"uid": "kvguard", "schemaVersion": 39, "editable": False, "graphTooltip": 1, "refresh": "30s"}
    assert wanted.items() <= BOARD.items()
    assert "id" not in BOARD
    assert "__inputs" not in BOARD


def test_every_datasource_is_the_chosen_one() -> None:
    """The variable is the only place a datasource comes from, and it points nowhere of its own."""
    assert {source["uid"] for source in every("datasource")} == {"${datasource}"}
    assert VARIABLES["datasource"]["current"] == {}
    assert VARIABLES["datasource"]["query"] == "prometheus"


def test_ids_are_numbers_of_one_panel_each() -> None:
    """Rows and the panels in folded ones have numbers of their own too."""
    numbers = [panel["id"] for panel in (*BOARD["panels"], *PANELS) if panel["type"] == "row"]
    numbers += [panel["id"] for panel in PANELS]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_titles_are_told_apart() -> None:
    """No two panels have one title."""
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)


def test_panels_do_not_overlap() -> None:
    """Each has a place of its own within the width of the page."""
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= WIDTH for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_rows_come_in_order() -> None:
    """A heading is above its panels and below those before; what few need is folded away, at the end."""
    tops = [panel["gridPos"]["y"] for panel in BOARD["panels"] if panel["type"] == "row"]
    folded = [panel["collapsed"] for panel in BOARD["panels"] if panel["type"] == "row"]
    assert all(upper < lower for upper, lower in pairwise(tops))
    assert folded == sorted(folded)
    assert any(folded)
    assert not folded[0]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_explains_itself(panel: dict[str, Any]) -> None:
    """It has a title, a sentence on what to make of it, a unit, queries with letters of their own, and words where
    there is nothing to show.
    """
    defaults = panel["fieldConfig"]["defaults"]
    letters = [target["refId"] for target in panel["targets"]]
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert defaults["unit"]
    assert defaults["noValue"] != "No data"
    assert "nan" in [mapping["options"].get("match") for mapping in defaults["mappings"]]
    assert letters
    assert len(set(letters)) == len(letters)


def test_every_metric_a_panel_reads_is_named_in_its_description() -> None:
    """Who wonders where a number comes from need not open the editor."""
    for panel in PANELS:
        for target in panel["targets"]:
            for metric in re.findall(r"\b(?:kvguard_|vllm:|tgi_)\w+(?={)", target["expr"]):
                base = re.sub("_(bucket|count|sum)$", "", metric)
                assert f"`{base}`" in panel["description"] or f"`{metric}`" in panel["description"], panel["title"]


def test_every_variable_is_there_and_used() -> None:
    """No query names one that does not exist, and none is offered that changes nothing."""
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD)))
    assert used - BUILT_IN <= VARIABLES.keys()
    assert VARIABLES.keys() - used == {"filters"}


def test_lists_of_values_come_from_metrics_nobody_else_exports() -> None:
    """A list offers what kvguard or an engine exports, all of it unless something is chosen, as of the time shown."""
    lists = {name: variable for name, variable in VARIABLES.items() if variable["type"] == "query"}
    assert list(lists) == ["job", "instance", "backend", "engine_job", "engine_instance"]
    for variable in lists.values():
        query = variable["query"]["query"]
        assert re.match(r'label_values\((kvguard_\w+|{__name__=~"vllm:\w+\|tgi_\w+")', query)
        assert variable["definition"] == query
        settings = {"multi": True, "includeAll": True, "allValue": ".+", "refresh": 2}
        assert settings.items() <= variable.items()


def test_lists_of_values_follow_the_choices_before() -> None:
    """Each is narrowed down by those chosen on its left."""
    wanted = {"job": [], "instance": ["job"], "backend": ["job", "instance"], "engine_instance": ["engine_job"]}
    found = {name: re.findall(r"\$(\w+)", VARIABLES[name]["query"]["query"]) for name in wanted}
    assert found == wanted


def test_targets_of_latency_are_bounds_of_buckets() -> None:
    """The share of first bytes in time is exact, for every target that is offered."""
    offered = [float(option["value"]) for option in VARIABLES["slo_first_byte"]["options"]]
    assert offered
    assert set(offered) <= set(SLOW)


@pytest.mark.parametrize(
    ("meanings", "states"),
    [(TELEMETRY, TelemetryState), (CONDITIONS, EngineState), (STANDINGS, Standing), (PHASES, Phase)],
)
def test_every_state_has_its_colour(meanings: dict[int, Any], states: type[Any]) -> None:
    """A timeline knows each state there is."""
    assert {meaning.text for meaning in meanings.values()} == {state.value for state in states}


def test_every_tier_has_its_colour() -> None:
    """A timeline knows each tier by its number and name."""
    assert {number: meaning.text.upper() for number, meaning in TIERS.items()} == {int(t): t.name for t in Tier}
