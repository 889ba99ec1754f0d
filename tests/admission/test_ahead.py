"""Room reserved before an answer begins, at and beside every boundary of the rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.admission.blocks import Ahead, BlockRule
from kvguard.admission.footprint import Demand
from kvguard.admission.forecast import Forecast

PIECES = Ahead(piece_tokens=1024, open_piece_tokens=1024)
PLAIN = BlockRule.plain(16)


@pytest.mark.parametrize(
    ("ahead", "prompt", "cap", "produced", "blocks"),
    [
        (Ahead(), 100, 1, 0, 100),
        (Ahead(), 100, 5000, 0, 5099),
        (Ahead(), 100, 5000, 4999, 5099),
        (Ahead(speculated_tokens=3), 100, 10, 0, 112),
        (PIECES, 100, 1024, 0, 1123),
        (PIECES, 100, 1025, 0, 1123),
        (PIECES, 100, 1025, 1024, 1123),
        # The second piece begins with what the first produced, and is as long as the first.
        (PIECES, 100, 1025, 1025, 2147),
        (PIECES, 100, 5000, 2049, 3171),
        (Ahead(sliding_window=256), 100, 500, 0, 256),
        (Ahead(sliding_window=256), 300, 500, 0, 256),
        (Ahead(sliding_window=256), 10, 20, 0, 29),
        (Ahead(sliding_window=256, window_spares_prompt=True), 300, 500, 0, 300),
        (Ahead(sliding_window=256, window_spares_prompt=True), 100, 500, 0, 256),
    ],
)
def test_what_is_reserved(ahead: Ahead, prompt: int, cap: int, produced: int, blocks: int) -> None:
    """Prompt, output less one and speculation, as far as piece and window let it."""
    assert ahead.blocks(prompt, cap, named=True, produced=produced, block_size=1) == blocks


@pytest.mark.parametrize(
    ("prompt", "cap", "window", "blocks"),
    [(1, 16, None, 2), (17, 17, None, 4), (300, 500, 256, 19), (100, 500, 256, 17)],
)
def test_padded_reservations_fill_blocks_of_their_own(prompt: int, cap: int, window: int | None, blocks: int) -> None:
    """Prompt and output each, the last token with them; a window bounds the output."""
    ahead = Ahead(padded=True, sliding_window=window, window_spares_prompt=True)
    assert ahead.blocks(prompt, cap, named=True, produced=0, block_size=16) == blocks
    speculating = Ahead(padded=True, sliding_window=window, window_spares_prompt=True, speculated_tokens=3)
    assert speculating.blocks(prompt, cap, named=True, produced=0, block_size=16) == blocks + 1


def test_an_open_cap_may_be_reserved_in_pieces_where_a_named_one_is_not() -> None:
    """5000 tokens at once or 1024 of them."""
    ahead = Ahead(open_piece_tokens=1024)
    sizes = [ahead.blocks(100, 5000, named=named, produced=0, block_size=1) for named in (True, False)]
    assert sizes == [5099, 1123]


def demand(cap: int | None, **changes: object) -> Demand:
    """A prompt of 100 tokens; 40 are expected of an answer without a cap."""
    return Demand(prompts=(100,), output_cap=cap, asked_cap=cap, expected_output=40 if cap is None else cap, **changes)


def test_a_demand_holds_its_whole_reservation_from_its_first_moment() -> None:
    """Nothing grows, a lower cap takes less, and a cap that kvguard writes is a named one."""
    rule = BlockRule(groups=PLAIN.groups, ahead=Ahead(open_piece_tokens=64))
    asked = demand(500)
    assert [asked.held_blocks(rule, produced=n) for n in (0, 1, 499)] == [38, 38, 38]
    assert asked.prompt_blocks(rule) == asked.reserved_blocks(rule) == 38
    assert asked.with_cap(29).prompt_blocks(rule) == 8
    assert demand(None).prompt_blocks(rule) == 9
    unnamed = demand(500, names_cap=False)
    assert unnamed.prompt_blocks(rule) == 11
    assert unnamed.with_cap(400).prompt_blocks(rule) == 32


def test_a_forecast_never_adds_growth_to_a_reservation() -> None:
    """The peak of two answers is what they hold now, whichever ends first; a piece still to come counts at once."""
    forecast = Forecast(BlockRule(groups=PLAIN.groups, ahead=Ahead(piece_tokens=64)))
    short, long = demand(30), demand(60)
    forecast.add(forecast.course(short, produced=0, remaining=30))
    forecast.add(forecast.course(long, produced=0, remaining=60))
    assert forecast.profile.peak == 9 + 10
    third = forecast.course(demand(100), produced=0, remaining=100)
    assert forecast.profile.peak_with(third) == 9 + 10 + 15


@given(
    st.builds(
        Ahead,
        piece_tokens=st.sampled_from([None, 1, 1024]),
        speculated_tokens=st.integers(0, 8),
        sliding_window=st.sampled_from([None, 1, 256]),
        window_spares_prompt=st.booleans(),
        padded=st.booleans(),
    ),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(0, 5000),
    st.sampled_from([1, 16, 256]),
)
def test_a_lower_cap_never_takes_more(ahead: Ahead, prompt: int, cap: int, lower: int, size: int) -> None:
    """Whatever the rule."""
    caps = (min(cap, max(lower, 1)), cap)
    less, more = (ahead.blocks(prompt, one, named=True, produced=0, block_size=size) for one in caps)
    assert less <= more
