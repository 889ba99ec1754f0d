"""The settings file as one mapping: what is taken, and what is said of the rest without quoting it."""

import os
from pathlib import Path

import pytest

from kvguard.errors import SettingsError
from kvguard.yaml_mapping import read_mapping

NAMES = frozenset({"tiers", "trim_at", "keys"})


def said_of(file: Path) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read_mapping(file, names=NAMES)
    assert all(fault.startswith(f"{file}: ") and "\n" not in fault for fault in caught.value.faults)
    return [fault.removeprefix(f"{file}: ") for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("tiers: {trim_at: 0.5}", {"tiers": {"trim_at": 0.5}}),
        ("{}", {}),
        ("# all defaults\n", {}),
        ("---\n# all defaults\n...\n", {}),
        # One name in several mappings, or over what was merged, is not there twice.
        ("a: {x: 1}\nb: {x: 2}\n", {"a": {"x": 1}, "b": {"x": 2}}),
        ("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n", {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}),
        ("a: &a [1]\nb: *a\n", {"a": [1], "b": [1]}),
    ],
)
def test_what_a_file_says(tmp_path: Path, text: str, content: dict[str, object]) -> None:
    """A mapping, which is empty for a file of comments."""
    file = tmp_path / "k.yaml"
    file.write_text(text)
    assert read_mapping(file, names=NAMES) == content


EMPTY = "is empty; where every default is meant, write a comment into it or remove it"
UNUSABLE = "line 1: an alias, tag or value that cannot be used"
UNREAD = "has a number or a date that cannot be read"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", [EMPTY]),
        (" \n\n", [EMPTY]),
        ("---\n", [EMPTY]),
        ("tiers: {}\n\ntiers: {}\n", ["line 3: tiers is there twice, first in line 1"]),
        ("tiers:\n  trim_at: 1\n  'trim_at': 1\n", ["line 3: trim_at is there twice, first in line 2"]),
        (
            "- tiers: {trim_at: 1, trim_at: 2}\n",
            ["line 1: trim_at is there twice, first in line 1", "must be a mapping of settings, not a list"],
        ),
        ("a: &a {trim_at: 1,\n trim_at: 2}\nb: *a\n", ["line 2: trim_at is there twice, first in line 1"]),
        (
            "tiers: 1\ntiers: 2\ntiers: 3\n",
            ["line 2: tiers is there twice, first in line 1", "line 3: tiers is there twice, first in line 1"],
        ),
        # Names that are no setting's are not told.
        ("keys:\n  sk-canary: 1\n  sk-canary: 2\n", ["line 3: a name is there twice, first in line 2"]),
        ("a: *sk-canary\n", [UNUSABLE]),
        ("a: !sk-canary x\n", [UNUSABLE]),
        ("a: !sk-canary!x y\n", [UNUSABLE]),
        ("a: !!int sk-canary\n", [UNREAD]),
        ("? [a]\n: sk-canary\n", [UNUSABLE]),
        ("a: 2026-13-45\n", [UNREAD]),
        ("a: {b: c\n", ["line 2: expected ',' or '}', but got '<stream end>'"]),
        ("a: 1\n--- \nb: 2\n", ["line 2: an alias, tag or value that cannot be used"]),
        ("[" * 5000, ["is nested too deeply"]),
        ("just text\n", ["must be a mapping of settings, not a str"]),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, text: str, faults: list[str]) -> None:
    """Every line tells the place, none the text of the file."""
    file = tmp_path / "k.yaml"
    file.write_text(text)
    assert said_of(file) == faults


def test_what_is_no_file(tmp_path: Path) -> None:
    """A device and a directory are told as what they are; a name without a file is none."""
    assert read_mapping(tmp_path / "none.yaml", names=NAMES) is None
    assert said_of(tmp_path) == ["is a directory"]
    assert said_of(Path(os.devnull)) == ["is no regular file"]


def test_what_is_no_text(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, and a file that may not be read."""
    file = tmp_path / "k.yaml"
    file.write_bytes(b"a: \xff")
    assert said_of(file) == ["is no text: invalid start byte at position 3"]
    long = Path("x" * 5000)
    assert said_of(long) == ["File name too long"]
