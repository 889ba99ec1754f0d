"""What the page of settings says of each."""

import re
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from docs import generate
from docs.setting_rows import INCIDENTS, allowed
from kvguard.backend_sections import ModeChoice
from kvguard.section import PositiveInt, Ratio, Seconds, SecondsOrZero, Threshold


class Example(BaseModel):
    switch: bool = False
    count: PositiveInt | None = None
    share: Ratio = 0.0
    part: Threshold = 1.0
    inner: Annotated[float, Field(gt=0, lt=1)] = 0.5
    wait: Seconds = 1.0
    pause: SecondsOrZero = 0.0
    rank: int = 0
    most: Annotated[int, Field(le=9)] = 0
    mode: ModeChoice = ModeChoice.ENFORCE
    modes: tuple[ModeChoice, ...] = ()
    names: tuple[str, ...] = ()
    path: Path | None = None
    table: dict[str, int] = {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("switch", "true, false"),
        ("count", "above 0"),
        ("share", "0 to 1"),
        ("part", "0 to 1, not 0"),
        ("inner", "0 to 1, not 0, not 1"),
        ("wait", "at least 0.05"),
        ("pause", "0, or at least 0.05"),
        ("rank", "any number"),
        ("most", "at most 9"),
        ("mode", "`enforce`, `shadow`"),
        ("modes", "list of `enforce`, `shadow`"),
        ("names", "list"),
        ("path", "text"),
        ("table", "mapping"),
    ],
)
def test_what_a_setting_may_be(name: str, text: str) -> None:
    """As its type and its bounds say."""
    assert allowed(Example.model_fields[name]) == text


def test_incidents_are_those_of_settings() -> None:
    """Each is told beside a setting that there is, and nothing is told of one that is gone."""
    page = generate.configuration()
    named = set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)) | set(
        re.findall(r"^## `([^`]+)`", page, re.MULTILINE)
    )
    assert INCIDENTS.keys() <= named
    assert len(re.findall(r"\*O-\d\d: [^*]+\.\*", page)) == sum(map(len, INCIDENTS.values()))
