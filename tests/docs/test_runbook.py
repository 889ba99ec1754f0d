"""The runbook has what an alert sends its reader for."""

import re
from pathlib import Path

import pytest

from docs.generate import configuration
from kvguard.admission.tiers import Tier
from kvguard.telemetry.alerts import Alert, alertmanager_body
from tests.deploy.rules import alerts

PAGE = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
SETTINGS = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", configuration(), re.MULTILINE))
# Names in the text that have the form of a setting, by the section they begin with.
SETTING = re.compile(r"`([a-z_]+(?:\[\])?(?:\.[a-z_]+)+)(?:: [^`]*)?`")


@pytest.mark.parametrize("name", alerts())
def test_every_alert_has_its_section(name: str) -> None:
    """Under its own name, which is the anchor of the alert's link: what it means, what to look at, what to turn."""
    section = SECTIONS[name]
    assert re.findall(r"^\*\*(\w[\w ]*)\.\*\*", section, re.MULTILINE) == ["Means", "Look at", "Turn"]
    look = section.partition("**Look at.**")[2].partition("**Turn.**")[0]
    assert re.search(r"\bkvguard_\w+|`up`", look)


def test_every_section_is_of_an_alert() -> None:
    """No section is left of an alert that is gone."""
    assert SECTIONS.keys() == alerts().keys()


def test_every_setting_the_runbook_names_exists() -> None:
    """Nobody is told at night to turn what there is not."""
    named = set(SETTING.findall(PAGE))
    assert len(named) > 20
    assert named <= SETTINGS


def test_links_within_the_runbook_lead_to_sections() -> None:
    """Each anchor is the name of a section in lower case."""
    assert set(re.findall(r"\]\(#(\w+)\)", PAGE)) <= {name.lower() for name in SECTIONS}


@pytest.mark.parametrize("tier", [Tier.TRIM, Tier.RESTRICT, Tier.REJECT])
def test_what_kvguard_sends_itself_leads_to_a_section(tier: Tier) -> None:
    """Of an alert that the rules have on the same tier."""
    (sent,) = alertmanager_body([Alert(backend="b", tier=tier, since=0.0)], instance="i", stamp=str)
    anchor = sent["annotations"]["runbook_url"].partition("#")[2]
    assert anchor in {name.lower() for name in SECTIONS}
