"""Numbers and truth values that are read for nothing else."""

import contextlib
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields
from kvguard.protocols.strict_fields import read_count, read_flag, read_object, read_positive
from tests.kit.properties import deterministic
from tests.protocols.any_json import objects


def field(raw: str) -> Fields:
    return {"x": msgspec.Raw(raw.encode())}


@pytest.mark.parametrize(
    ("read", "raw", "value"),
    [
        (read_count, "null", None),
        (read_count, "0", 0),
        (read_count, "7", 7),
        (read_count, "4294967295", 4294967295),
        (read_positive, "null", None),
        (read_positive, "1", 1),
        (read_flag, "null", False),
        (read_flag, "true", True),
        (read_flag, "false", False),
        (read_object, "null", {}),
        (read_object, "{}", {}),
        (read_object, '{"a": 1.50}', {"a": msgspec.Raw(b"1.50")}),
    ],
)
def test_what_is_read(read: Callable[[Fields, str], object], raw: str, value: object) -> None:
    """Values of the very type; null is nothing."""
    assert read(field(raw), "x") == value


@pytest.mark.parametrize("read", [read_count, read_positive, read_flag, read_object])
def test_an_absent_field(read: Callable[[Fields, str], object]) -> None:
    """It reads as null does."""
    assert read({}, "x") == read(field("null"), "x")


@pytest.mark.parametrize(
    ("read", "raw"),
    [
        *(
            (read_count, raw)
            for raw in ("-1", "-0", "5.0", "1e1", '"5"', "true", "[5]", "{}", "4294967296", "9" * 5000)
        ),
        *((read_positive, raw) for raw in ("0", "-1", "1.5", '"1"')),
        *((read_flag, raw) for raw in ("0", "1", '"true"', "[]", '"falsefalse"')),
        *((read_object, raw) for raw in ("5", '"x"', "[]", '[{"a": 1}]', "true")),
    ],
)
def test_what_is_refused(read: Callable[[Fields, str], object], raw: str) -> None:
    """Nothing else is taken for a value of the type, by the name of the field."""
    with pytest.raises(InvalidRequest) as caught:
        read(field(raw), "x")
    assert caught.value.param == "x"


@deterministic
@given(objects("x"))
def test_any_json(fields: Fields) -> None:
    """Whatever the field holds has the type or is refused."""
    for read, kind in ((read_count, int), (read_positive, int), (read_flag, bool), (read_object, dict)):
        with contextlib.suppress(InvalidRequest):
            assert isinstance(read(fields, "x"), kind | None)
