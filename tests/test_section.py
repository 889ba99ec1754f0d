"""What every setting has in common: switches are no numbers, nothing is empty, no time is senselessly short."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from kvguard.errors import SettingsError
from kvguard.section import LEAST_SECONDS, Section, setting_names
from kvguard.settings import Settings


def sections(model: type[BaseModel] = Settings) -> Iterator[type[Section]]:
    """Every group of settings there is."""
    for field in model.model_fields.values():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, Section):
                yield part
                yield from sections(part)


SECTIONS = tuple(dict.fromkeys(sections()))
FIELDS = tuple((section, name) for section in SECTIONS for name in section.model_fields)


def of_type(*kinds: type) -> list[Any]:
    """Settings that take one of these types."""
    return [
        pytest.param(section, name, id=f"{section.__name__}.{name}")
        for section, name in FIELDS
        if {section.model_fields[name].annotation, *get_args(section.model_fields[name].annotation)} & set(kinds)
    ]


def complaint(section: type[Section], name: str, value: object) -> str:
    """What is said of this value for the setting; nothing when it is taken."""
    try:
        section(**{name: value})
    except ValidationError as error:
        return "; ".join(detail["msg"] for detail in error.errors() if detail["loc"] == (name,))
    return ""


@pytest.mark.parametrize(("section", "name"), of_type(int, float))
def test_true_is_no_number(section: type[Section], name: str) -> None:
    """For every setting that is a number, bounded or not."""
    for given in (True, False):
        assert complaint(section, name, given)
    assert "true" not in complaint(section, name, 1)


@pytest.mark.parametrize(("section", "name"), of_type(bool))
def test_a_number_is_no_switch(section: type[Section], name: str) -> None:
    """For every switch; text stands for it, as in the environment."""
    for given in (0, 1, 1.0):
        assert "must be true or false, not a number" in complaint(section, name, given)
    for text in (True, False, "true", "0"):
        assert complaint(section, name, text) == ""


def test_variables_are_text_and_stand_for_numbers_and_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changed for them."""
    monkeypatch.setenv("KVGUARD_WAITING__MAX_REQUESTS", "1")
    monkeypatch.setenv("KVGUARD_STREAMS__ASK_USAGE", "0")
    settings = Settings()
    assert (settings.waiting.max_requests, settings.streams.ask_usage) == (1, False)
    monkeypatch.setenv("KVGUARD_CLASSES", '[{"name": "a", "tiers": {"min_dwell_seconds": true}}]')
    with pytest.raises(SettingsError, match=r"classes\.a: min_dwell_seconds: must be a number, not true or false"):
        Settings()


@pytest.mark.parametrize(
    ("section", "name"), [pytest.param(*row, id=f"{row[0].__name__}.{row[1]}") for row in FIELDS if "_sec" in row[1]]
)
def test_a_time_is_none_or_long_enough(section: type[Section], name: str) -> None:
    """A billionth of a second is nobody's wish, and would keep a processor busy."""
    if name == "max_preemptions_per_second":
        return
    least = 1 if name == "state_interval_seconds" else LEAST_SECONDS
    assert complaint(section, name, 1e-9)
    assert complaint(section, name, least - 0.001)
    assert complaint(section, name, least) == ""
    default = section.model_fields[name].default
    assert default == 0 or default >= least


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"forecast": {"state_file": ""}}, "forecast.state_file"),
        ({"decision_log": {"path": " "}}, "decision_log.path"),
        ({"tokens": {"tokenizer": ""}}, "tokens.tokenizer"),
        ({"tokens": {"tokenizers": {"m": ""}}}, "tokens.tokenizers"),
        ({"tokens": {"aliases": {"": "m"}}}, "tokens.aliases"),
        ({"degrade": {"reasoning_models": ["m", ""]}}, "degrade.reasoning_models"),
        ({"overrides": [{"models": ""}]}, "overrides.0.models"),
        ({"listen": {"host": ""}}, "listen.host"),
        ({"backends": [{"url": "http://a:1", "name": ""}]}, "backends.0.name"),
    ],
)
def test_nothing_is_empty(part: dict[str, Any], where: str) -> None:
    """Empty text is no path, no name and no pattern; no default is meant by it."""
    with pytest.raises(SettingsError) as caught:
        Settings(**part)
    assert caught.value.faults == (f"{where}: must not be empty; leave it out for the default",)


def test_names_of_settings_are_those_of_every_group() -> None:
    """Of groups in groups, in lists and in mappings too, and no others."""
    names = setting_names(Settings)
    assert {"tiers", "trim_at", "num_speculative_tokens", "tenant", "family"} <= names
    assert names == {*Settings.model_fields, *(name for _, name in FIELDS)}
