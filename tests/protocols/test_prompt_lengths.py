"""Prompts cut to size, and headroom for counts that may be too low."""

import pytest

from kvguard.protocols.prompt_lengths import cut, longest_prompt, with_slack


@pytest.mark.parametrize(
    ("truncate_to", "context", "generates", "longest"),
    [
        (None, 100, True, None),
        (7, 100, True, 7),
        (0, None, False, 0),
        (-1, 100, True, 99),
        (-1, 100, False, 100),
        (-1, None, True, None),
    ],
)
def test_the_longest_prompt(truncate_to: int | None, context: int | None, generates: bool, longest: int | None) -> None:
    """A negative number means the context, which leaves room for a token where one is generated."""
    assert longest_prompt(truncate_to, context, generates=generates) == longest


def test_cutting() -> None:
    """Only longer prompts are cut."""
    assert cut((1, 5, 9), 5) == (1, 5, 5)
    assert cut((1, 5, 9), None) == (1, 5, 9)


def test_headroom() -> None:
    """It ends with the context, and shortens no prompt."""
    assert tuple(with_slack((10, 90, 120), (20, 20, 20), 100)) == (30, 100, 120)
    assert tuple(with_slack((10,), (20,), None)) == (30,)
