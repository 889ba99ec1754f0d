"""Typed reading of JSON values: what passes, and how an error reads."""

import pytest

from kvguard.modelspec.fields import Fields, UnsupportedConfig

FIELDS = Fields(
    {
        "n": 4,
        "also_n": 4,
        "other_n": 5,
        "zero": 0,
        "yes": True,
        "word": "x",
        "inner": {"n": "no"},
        "empty": {},
        "nil": None,
    }
)


def test_values_come_back_by_type() -> None:
    """Numbers, flags, strings and objects are handed on unchanged."""
    assert (FIELDS.whole("n"), FIELDS.flag("yes", default=False), FIELDS.text("word")) == (4, True, "x")
    assert FIELDS.whole("zero", minimum=0) == 0
    assert FIELDS.nested("inner") == Fields({"n": "no"}, "inner.")


@pytest.mark.parametrize("name", ["nil", "missing"])
def test_null_is_absent(name: str) -> None:
    """A null and a missing field read the same."""
    assert not FIELDS.has(name)
    assert FIELDS.whole(name) is None
    assert FIELDS.text(name) is None
    assert FIELDS.nested(name) is None
    assert FIELDS.flag(name, default=True)


def test_an_empty_object_is_absent() -> None:
    """An object without fields says nothing."""
    assert FIELDS.nested("empty") is None


@pytest.mark.parametrize("value", [0, -1, 4.0, "4", True, [4], {}])
def test_a_count_must_be_a_positive_whole_number(value: object) -> None:
    """Anything but a whole number of at least the minimum is an error with name and value."""
    with pytest.raises(UnsupportedConfig) as caught:
        Fields({"n": value}).whole("n")
    assert str(caught.value) == f"n: expected a whole number of at least 1, got {value!r}"
    assert caught.value.field == "n"


def test_wrong_types_name_field_and_value() -> None:
    """A flag, a string and an object of another type are errors too; a nested field is named by its path."""
    with pytest.raises(UnsupportedConfig, match=r"^word: expected true or false, got 'x'$"):
        FIELDS.flag("word", default=False)
    with pytest.raises(UnsupportedConfig, match=r"^n: expected a string, got 4$"):
        FIELDS.text("n")
    with pytest.raises(UnsupportedConfig, match=r"^n: expected an object, got 4$"):
        FIELDS.nested("n")
    with pytest.raises(UnsupportedConfig, match=r"^inner\.n: expected a whole number of at least 1, got 'no'$"):
        Fields({"n": "no"}, "inner.").whole("n")


def test_a_long_value_is_cut() -> None:
    """An error does not repeat a whole file."""
    with pytest.raises(UnsupportedConfig) as caught:
        Fields({"n": "x" * 10_000}).whole("n")
    assert len(str(caught.value)) < 140


def test_names_of_one_meaning_must_agree() -> None:
    """The same number under two names is fine; two numbers are an error that names both."""
    assert FIELDS.first_whole(("missing", "n", "also_n")) == 4
    assert FIELDS.first_whole(("missing", "nil")) is None
    with pytest.raises(UnsupportedConfig, match=r"^other_n: 5 contradicts n 4$"):
        FIELDS.first_whole(("n", "other_n"))


def test_a_required_number_is_named_when_missing() -> None:
    """The first of the names stands for all of them."""
    assert FIELDS.required_whole(("missing", "n")) == 4
    with pytest.raises(UnsupportedConfig, match=r"^missing: missing$"):
        FIELDS.required_whole(("missing", "nil"))


def test_the_class_fills_in_what_the_file_leaves_out() -> None:
    """Also inside an object; a null in the file is said and stays."""
    fields = Fields({"nil": None, "inner": {"a": 1}}, defaults={"n": 4, "nil": 5, "inner": {"a": 2, "b": 3}})
    assert (fields.whole("n"), fields.whole("nil"), fields.has("nil")) == (4, None, False)
    inner = fields.nested("inner")
    assert inner is not None
    assert (inner.whole("a"), inner.whole("b")) == (1, 3)
    assert Fields({}, defaults={"inner": {"b": 3}}).nested("inner") == Fields({"b": 3}, "inner.", {"b": 3})


def test_what_the_file_says_under_any_name_goes_before_a_default() -> None:
    """A default under one name does not contradict a number under another."""
    fields = Fields({"other_n": 5, "nil": None}, defaults={"n": 4, "nil": 4})
    assert fields.first_whole(("n", "other_n")) == 5
    assert fields.first_whole(("n", "missing")) == 4
    assert fields.first_whole(("n", "nil")) is None


def test_lists_come_back_by_type() -> None:
    """Numbers, strings and anything, or None where there is no list."""
    fields = Fields({"numbers": [0, 1], "words": ["a"], "mixed": [1, "a"], "pair": (1, 2)})
    assert (fields.wholes("numbers"), fields.texts("words"), fields.entries("mixed")) == ((0, 1), ("a",), (1, "a"))
    assert fields.wholes("pair") == (1, 2)
    assert fields.wholes("no") is fields.texts("no") is fields.entries("no") is None


def test_lists_of_something_else_are_errors() -> None:
    """A list that is none, and one with an entry of another type."""
    with pytest.raises(UnsupportedConfig, match=r"^n: expected a list, got 4$"):
        FIELDS.wholes("n")
    with pytest.raises(UnsupportedConfig, match=r"^n: expected a list of whole numbers of at least 1, got \[0\]$"):
        Fields({"n": [0]}).wholes("n", minimum=1)
    with pytest.raises(UnsupportedConfig, match=r"^n: expected a list of strings, got \[1\]$"):
        Fields({"n": [1]}).texts("n")


def test_one_required_number() -> None:
    """Missing is an error that names it."""
    assert FIELDS.required("n") == 4
    with pytest.raises(UnsupportedConfig, match=r"^nil: missing$"):
        FIELDS.required("nil")


def test_a_number_beyond_any_size_names_the_limit() -> None:
    """It is a whole number of at least 1, so saying that would be no help."""
    with pytest.raises(UnsupportedConfig, match=r"^a: expected a whole number of at most 1099511627776, got 10"):
        Fields({"a": 10**30}).whole("a")
