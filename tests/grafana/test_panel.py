"""Panels get their places and numbers from the order in which they are written down."""

from grafana.panel import Colour, Kind, Meaning, Panel, Query, Row, Style, laid_out
from grafana.variables import variables


def panel(title: str, **fields: object) -> Panel:
    values = {"description": "About it.", "unit": "short", "queries": (Query(expression="up"),), **fields}
    return Panel(title=title, **values)


def places(rows: list[Row]) -> list[tuple[str, int, int]]:
    return [(each["title"], each["gridPos"]["x"], each["gridPos"]["y"]) for each in laid_out(rows)]


def test_panels_fill_a_line_and_go_on_in_the_next() -> None:
    """The next line is below the tallest of this one, and the next row below all of it."""
    first = Row(title="first", panels=(panel("a", width=12), panel("b", width=12, height=9), panel("c", width=16)))
    second = Row(title="second", panels=(panel("d"),))
    assert places([first, second]) == [
        ("first", 0, 0),
        ("a", 0, 1),
        ("b", 12, 1),
        ("c", 0, 10),
        ("second", 0, 18),
        ("d", 0, 19),
    ]


def test_a_folded_row_holds_its_panels() -> None:
    """Grafana keeps them in the row, and what comes after it is numbered on."""
    folded = Row(title="folded", panels=(panel("a"), panel("b")), folded=True)
    first, second, _ = laid_out([folded, Row(title="open", panels=(panel("c"),))])
    assert [each["id"] for each in first["panels"]] == [2, 3]
    assert first["collapsed"] is True
    assert second["id"] == 4
    assert second["panels"] == []


def test_numbers_are_asked_for_once_and_lines_over_time() -> None:
    """A panel that shows the last value does not have a range evaluated for it."""
    row = Row(title="row", panels=(panel("a", kind=Kind.NUMBERS), panel("b")))
    _, number, line = laid_out([row])
    assert [(each["targets"][0]["instant"], each["targets"][0]["range"]) for each in (number, line)] == [
        (True, False),
        (False, True),
    ]


def test_a_style_reaches_its_series_only() -> None:
    """Colour, dashes and bands are set for the series of that name; the end of a band is no line of its own."""
    styles = {"y": Style(colour=Colour.REJECT, dashed=True), "x": Style(colour=Colour.TRIM, band_from="y")}
    row = Row(title="row", panels=(panel("a", styles=styles),))
    line, band = laid_out([row])[1]["fieldConfig"]["overrides"]
    assert [each["matcher"] for each in (line, band)] == [{"id": "byName", "options": name} for name in ("y", "x")]
    drawn, filled = ({each["id"]: each["value"] for each in style["properties"]} for style in (line, band))
    assert drawn["color"] == {"mode": "fixed", "fixedColor": "red"}
    assert drawn["custom.lineStyle"]["fill"] == "dash"
    assert filled["custom.fillBelowTo"] == "y"
    assert filled["custom.lineWidth"] == 0
    assert filled["custom.hideFrom"]["legend"] is True


def test_values_get_their_words() -> None:
    """A number that stands for a state is shown as the state, and no number as no traffic."""
    row = Row(title="row", panels=(panel("a", meanings={3: Meaning(text="Reject", colour=Colour.REJECT)}),))
    names, missing = laid_out([row])[1]["fieldConfig"]["defaults"]["mappings"]
    assert names["options"] == {"3": {"text": "Reject", "color": "red", "index": 0}}
    assert missing["options"]["result"]["text"] == "No traffic"


def test_the_default_of_a_choice_is_one_of_its_values() -> None:
    """Grafana opens with a target that is offered."""
    for variable in variables():
        if variable["type"] == "custom":
            assert variable["current"] in variable["options"]
