"""What groups of settings have in common: their base, the numbers they are made of, and faults of several at once."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidatorFunctionWrapHandler, field_validator
from pydantic_core import PydanticCustomError

from kvguard.faults import TOGETHER, Place

# Less is nobody's wish, and what is done again and again after so little would do nothing else.
LEAST_SECONDS: Final = 0.05


def _off_or_sensible(seconds: float) -> float:
    if 0 < seconds < LEAST_SECONDS:
        raise ValueError(f"must be 0, or at least {LEAST_SECONDS}")
    return seconds


Ratio = Annotated[float, Field(ge=0, le=1)]
Threshold = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(ge=LEAST_SECONDS)]
SecondsOrZero = Annotated[float, Field(ge=0), AfterValidator(_off_or_sensible)]


class Section(BaseModel):
    """A group of settings: immutable, no unknown keys, documented fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _as_written(cls, given: Any, read: ValidatorFunctionWrapHandler) -> Any:
        """Text may stand for anything, as in the environment, but no switch is a number, and nothing is empty text."""
        if any(isinstance(each, str) and not each.strip() for each in _written(given)):
            raise ValueError("must not be empty; leave it out for the default")
        value = read(given)
        if isinstance(given, bool) and not isinstance(value, bool):
            raise ValueError("must be a number, not true or false")
        if isinstance(value, bool) and not isinstance(given, bool | str):
            raise ValueError("must be true or false, not a number")
        return value


def _written(given: Any) -> tuple[Any, ...]:
    """What stands in a setting: itself, or the entries of a list or a mapping."""
    match given:
        case dict():
            return (*given, *given.values())
        case list() | tuple():
            return tuple(given)
        case _:
            return (given,)


def together(text: str, *places: str | Place) -> PydanticCustomError:
    """The fault of several settings, which do not go together; `places` are their names within the section."""
    within = [(place,) if isinstance(place, str) else place for place in places]
    return PydanticCustomError(TOGETHER, "{text}", {"text": text, "places": within})


def setting_names(section: type[BaseModel]) -> frozenset[str]:
    """Every name a setting has in the section or in a section of it."""
    return frozenset(_names(section))


def _names(section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield name
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _names(part)
