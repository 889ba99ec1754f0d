"""Faults of single settings and of several, told at once."""

from typing import Any

import pytest
from pydantic import ValidationError, model_validator

from kvguard.errors import SettingsError
from kvguard.faults import Fault, every_fault, faults_of
from kvguard.section import Section, together
from kvguard.settings import Settings


class Pair(Section):
    """Two numbers that must rise, and one beside them."""

    low: int = 1
    high: int = 2
    other: int = 0

    @model_validator(mode="after")
    def _rising(self) -> "Pair":
        if self.low >= self.high:
            raise together("low < high must hold", "low", "high")
        return self


def look(given: dict[str, Any]) -> list[Fault]:
    try:
        Pair(**given)
    except ValidationError as error:
        return faults_of(error)
    return []


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({}, []),
        ({"low": 5}, ["low < high must hold"]),
        ({"low": 5, "high": 3, "other": "x"}, ["other: Input should be a valid integer", "low < high must hold"]),
        ({"low": 5, "nope": 1}, ["nope: Extra inputs are not permitted", "low < high must hold"]),
        # With its default the other one would be wrong; nobody knows what was meant.
        ({"low": "x", "high": 1}, ["low: Input should be a valid integer"]),
    ],
)
def test_settings_that_do_not_go_together_are_told_beside_others(given: dict[str, Any], texts: list[str]) -> None:
    """If each of them is valid; else what was meant is not known."""
    told = [fault.text.split(", unable")[0] for fault in every_fault(given, look)]
    assert told == texts


def test_a_look_that_always_finds_something_ends() -> None:
    """Also where nothing is given that could be taken out."""
    fault = Fault(text="never right", places=(("low",),))
    assert every_fault({}, lambda _: [fault]) == [fault]
    assert every_fault({"low": {"a": 1}, "b": 2}, lambda _: [fault]) == [fault]


KEY = "0" * 16
SAME_HEADERS = {"tenant_header": "x-a", "priority_header": "x-a"}


@pytest.mark.parametrize(
    ("sections", "texts"),
    [
        # One section does not hide another, nor what is wrong between sections.
        (
            {
                "listen": {"port": -1},
                "identity": {**SAME_HEADERS, "keys": {KEY: {"tenant": "a", "priority": "vip"}}},
                "tiers": {"trim_at": 0.96, "exit_margin": 2},
                "classes": [{"name": "low", "tiers": {"nope": 1}, "degrade": {"floor_tokens": 9999}}],
            },
            [
                "listen.port: Input should be greater than or equal to 0",
                "tiers.exit_margin: Input should be less than or equal to 1",
                "identity: tenant_header and priority_header must differ",
                "tiers: trim_at < restrict_at < reject_at must hold",
                "classes.low: nope: Extra inputs are not permitted",
                "classes.low: floor_tokens must not exceed max_output_tokens",
                "identity.keys: there is no class vip",
            ],
        ),
        # Both in one class.
        (
            {"classes": [{"name": "low", "tiers": {"reject_at": 0.2, "nope": 1}}]},
            [
                "classes.low: nope: Extra inputs are not permitted",
                "classes.low: trim_at < restrict_at < reject_at must hold",
            ],
        ),
        # The class may be the one whose name is wrong.
        (
            {
                "classes": [{"name": "v i p"}],
                "identity": {"keys": {KEY: {"tenant": "a", "priority": "vip"}}},
            },
            ["classes.0.name: String should match pattern '^[A-Za-z0-9._:/+=@-]{1,128}$'"],
        ),
        # What is required and wrong takes the list with it; no entry takes the place of another.
        (
            {"backends": [{"url": "http://a:1"}, {"url": "x"}, {"url": "http://a:1"}], "listen": {"port": 9090}},
            [
                "listen: port and admin_port must differ",
                "backends.1.url: must be http(s)://host:port, tgi+http(s)://host:port, (tgi+)dns+http://name:port, "
                "sim:// or sim+tgi://",
            ],
        ),
        # A backend's unknown key does not hide that two have one name; a wrong name does.
        (
            {"backends": [{"url": "http://a:1", "nope": 1}, {"url": "http://a:1"}]},
            [
                "backends.0.nope: Extra inputs are not permitted",
                "backends: two backends are named a:1; give each a name of its own",
            ],
        ),
        (
            {"backends": [{"url": "http://a:1", "name": 1}, {"url": "http://a:1"}]},
            ["backends.0.name: Input should be a valid string"],
        ),
        (
            {"forecast": {"state_file": "f"}, "decision_log": {"path": "f", "sample": 2}},
            [
                "decision_log.sample: Input should be less than or equal to 1",
                "forecast.state_file and decision_log.path must differ",
            ],
        ),
        # Told once, however many classes and overrides it is combined with.
        (
            {"overrides": [{"tiers": {"nope": 1}}, {"tiers": {"trim_at": True}}]},
            [
                "overrides.0: nope: Extra inputs are not permitted",
                "overrides.1: trim_at: must be a number, not true or false",
            ],
        ),
    ],
)
def test_all_of_them_are_told_of_the_settings(sections: dict[str, Any], texts: list[str]) -> None:
    """Each fault is there whose settings are valid, and nothing that only follows from another."""
    with pytest.raises(SettingsError) as caught:
        Settings(**sections)
    assert list(caught.value.faults) == texts
