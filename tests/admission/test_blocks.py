"""Blocks of one sequence by group, step and length; the measured runs are in tests/engines/test_vllm_blocks.py."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvguard.admission.blocks import NO_SURGE, Ahead, BlockGroup, BlockRule, PoolLayout, Surge, blocks_for
from tests.admission.build import block_rules
from tests.kit.properties import deterministic

FULL = BlockGroup(block_size=16)
SLIDING = BlockGroup(block_size=16, sliding_window=64)
CHUNKED = BlockGroup(block_size=16, attention_chunk_size=64)


@pytest.mark.parametrize(
    ("tokens", "block_size", "blocks"),
    [
        (0, 16, 0),
        (1, 16, 1),
        (15, 16, 1),
        (16, 16, 1),
        (17, 16, 2),
        (31, 16, 2),
        (32, 16, 2),
        (33, 16, 3),
        (5, 1, 5),
        (1000 + 25, 128, 9),
        (1000 + 24, 128, 8),
        (1000 + 23, 128, 8),
    ],
)
def test_a_sequence_holds_whole_blocks(tokens: int, block_size: int, blocks: int) -> None:
    """A started block counts whole, and a full one is not yet two."""
    assert blocks_for(tokens, block_size) == blocks


@pytest.mark.parametrize(
    ("group", "computed", "scheduled", "blocks"),
    [
        (FULL, 0, 16, 1),
        (FULL, 16, 1, 2),
        (FULL, 1000, 24, 64),
        # A window of 64 reaches back 63 tokens: token 64 still needs the first block, token 79 no more.
        (SLIDING, 63, 1, 4),
        (SLIDING, 64, 1, 5),
        (SLIDING, 78, 1, 5),
        (SLIDING, 79, 1, 4),
        (SLIDING, 80, 1, 5),
        (SLIDING, 0, 640, 40),
        (SLIDING, 640, 640, 80 - 577 // 16),
        # A new chunk starts with nothing.
        (CHUNKED, 63, 1, 4),
        (CHUNKED, 64, 1, 1),
        (CHUNKED, 127, 1, 4),
        (CHUNKED, 32, 64, 6),
        (CHUNKED, 96, 64, 6),
        (BlockGroup(block_size=16, count=3), 0, 17, 6),
        (BlockGroup(block_size=32, count=2, sliding_window=64), 63, 1, 4),
    ],
)
def test_blocks_in_a_step(group: BlockGroup, computed: int, scheduled: int, blocks: int) -> None:
    """What vLLM holds while it computes these tokens, by its own four formulas."""
    assert group.held(computed, scheduled) == blocks


@pytest.mark.parametrize(
    ("group", "most"),
    [
        (FULL, None),
        (SLIDING, 5),
        (BlockGroup(block_size=16, sliding_window=63), 5),
        (BlockGroup(block_size=16, sliding_window=65), 5),
        (BlockGroup(block_size=16, sliding_window=66), 6),
        (BlockGroup(block_size=16, sliding_window=1), 1),
        (BlockGroup(block_size=16, sliding_window=2), 2),
        (CHUNKED, 4),
        (BlockGroup(block_size=16, attention_chunk_size=65), 5),
    ],
)
def test_the_most_a_settled_window_holds(group: BlockGroup, most: int | None) -> None:
    """The bound is met at some length and never exceeded."""
    assert group.most_blocks() == most
    if most is not None:
        assert max(group.held(tokens, 1) for tokens in range(1000)) == most


def test_a_layout_of_several_groups_adds_up() -> None:
    """One pool serves all groups, and states count once each."""
    rule = BlockRule(groups=(FULL, SLIDING), state_blocks=3, spanning_state_blocks=3, step_tokens=640)
    assert rule.settled_blocks(0) == rule.reached_blocks(0) == rule.prefill_blocks(0) == 0
    assert rule.settled_blocks(1) == rule.reached_blocks(1) == rule.prefill_blocks(1) == 5
    assert rule.settled_blocks(1280) == 80 + 80 - (1279 - 63) // 16 + 3
    assert rule.reached_blocks(1280) == 80 + 5 + 3
    # One step holds no state twice; two do, and the second step holds the window and its own tokens.
    assert rule.prefill_blocks(640) == 40 + 40 + 3
    assert rule.prefill_blocks(1280) == 80 + (80 - 577 // 16) + 3 + 3
    assert rule.surge(640) == Surge(40 - 5, 1)
    assert rule.surge(16) == NO_SURGE


def test_tokens_ahead_take_room() -> None:
    """Slots for speculated tokens count in every step."""
    rule = BlockRule(groups=(FULL,), lookahead_tokens=4)
    assert [rule.settled_blocks(tokens) for tokens in (12, 13)] == [1, 2]
    assert [rule.reached_blocks(tokens) for tokens in (12, 13)] == [1, 2]
    assert [rule.prefill_blocks(tokens) for tokens in (12, 13)] == [1, 2]
    assert CHUNKED.most_blocks(4) == 5
    assert SLIDING.most_blocks(4) == 6


@pytest.mark.parametrize(
    ("rule", "block_size", "tokens_per_block", "surges"),
    [
        (BlockRule.plain(16), 16, 16.0, False),
        (BlockRule(groups=(BlockGroup(block_size=32), SLIDING)), 32, 32.0, True),
        (BlockRule(groups=(FULL, BlockGroup(block_size=16, count=3, sliding_window=9))), 16, 16.0, True),
        (BlockRule(groups=(SLIDING,)), 16, 16.0, True),
        (BlockRule(groups=(), state_blocks=1), 1, 1.0, False),
        (BlockRule(groups=(FULL,), spanning_state_blocks=1), 16, 16.0, True),
        (PoolLayout.plain(16).rule, 16, 16.0, False),
    ],
)
def test_what_a_rule_says_of_itself(rule: BlockRule, block_size: int, tokens_per_block: float, surges: bool) -> None:
    """Its block is that of what grows without end, and only what forgets can surge."""
    assert (rule.block_size, rule.tokens_per_block, rule.surges) == (block_size, tokens_per_block, surges)


def test_prefills_together_share_the_tokens_of_a_step() -> None:
    """Many prompts at once hold no more than one step computes, and a rounded block each."""
    rule = BlockRule(groups=(FULL, SLIDING), step_tokens=640)
    one = rule.surge(6400)
    assert one == Surge(80 - 577 // 16 - 40 + 40 - 5, 1)
    assert one.shared(rule) == 39
    assert one.times(10).shared(rule) == 40 + 10
    assert (one + one).shared(rule) == 42
    assert NO_SURGE.shared(rule) == 0


@deterministic
@given(rule=block_rules(), tokens=st.integers(0, 1500))
def test_reached_never_falls_and_bounds_what_is_held(rule: BlockRule, tokens: int) -> None:
    """It is at least what any shorter settled sequence holds, and at most a block a windowed group more than needed."""
    reached = rule.reached_blocks(tokens)
    assert reached <= rule.reached_blocks(tokens + 1)
    assert reached >= rule.settled_blocks(tokens)


@deterministic
@given(rule=block_rules(), tokens=st.integers(1, 800))
def test_a_prefill_never_holds_less_than_its_last_step(rule: BlockRule, tokens: int) -> None:
    """The peak covers every step of the prefill, whatever its size, and the surge is what goes beyond the settled."""
    steps = range(0, tokens, rule.step_tokens)
    held = [rule.held_blocks(done, min(rule.step_tokens, tokens - done)) for done in steps]
    assert rule.prefill_blocks(tokens) >= max(held)
    assert rule.reached_blocks(tokens) + rule.surge(tokens).blocks >= rule.prefill_blocks(tokens)


@pytest.mark.parametrize(
    ("tokens", "more"), [(0, 1), (1, 16), (2, 15), (16, 1), (17, 8), (23, 2), (24, 1), (25, 8), (32, 1), (33, 16)]
)
def test_the_next_block_begins_with_the_group_whose_block_is_full_first(tokens: int, more: int) -> None:
    """With blocks of 16 and of 24 tokens one of 17 tokens begins another in eight."""
    rule = BlockRule(groups=(BlockGroup(block_size=16), BlockGroup(block_size=24)))
    assert rule.tokens_to_next_block(tokens) == more
    assert rule.reached_blocks(tokens + more) > rule.reached_blocks(tokens)
    assert tokens == 0 or rule.reached_blocks(tokens + more - 1) == rule.reached_blocks(tokens)


def loop_over_steps(rule: BlockRule, tokens: int) -> int:
    """What `prefill_blocks` says, by a look at every step."""
    steps = range(0, tokens, rule.step_tokens)
    spans = rule.spanning_state_blocks if len(steps) > 1 else 0
    return spans + max(rule.held_blocks(done, min(rule.step_tokens, tokens - done)) for done in steps)


any_group = st.one_of(
    st.builds(BlockGroup, block_size=st.integers(1, 40), count=st.integers(1, 5)),
    st.builds(BlockGroup, block_size=st.integers(1, 40), count=st.integers(1, 5), sliding_window=st.integers(1, 400)),
    st.builds(
        BlockGroup, block_size=st.integers(1, 40), count=st.integers(1, 5), attention_chunk_size=st.integers(1, 400)
    ),
)
any_rule = st.builds(
    BlockRule,
    groups=st.lists(any_group, max_size=4).map(tuple),
    state_blocks=st.integers(0, 2),
    spanning_state_blocks=st.integers(0, 2),
    step_tokens=st.integers(1, 300),
    lookahead_tokens=st.integers(0, 9),
)


@settings(deterministic, max_examples=300)
@given(any_rule, st.integers(1, 6000))
def test_a_prefill_is_the_most_of_all_its_steps(rule: BlockRule, tokens: int) -> None:
    """Few steps are looked at, and the one that holds the most is among them."""
    assert rule.prefill_blocks(tokens) == loop_over_steps(rule, tokens)


@settings(deterministic, max_examples=75)
@given(st.builds(replace, any_rule, step_tokens=st.integers(1, 3)), st.integers(1, 3000))
def test_a_prefill_in_tiny_steps(rule: BlockRule, tokens: int) -> None:
    """Also where a block takes many of them."""
    assert rule.prefill_blocks(tokens) == loop_over_steps(rule, tokens)


@pytest.mark.parametrize(
    ("rule", "most"),
    [
        (BlockRule(groups=(FULL,)), 9),
        (BlockRule(groups=(FULL, SLIDING), step_tokens=8192), 9),
        (BlockRule(groups=(FULL, SLIDING, CHUNKED), step_tokens=256), 60),
        (BlockRule(groups=(SLIDING,), step_tokens=8191), 40),
        (BlockRule(groups=(BlockGroup(block_size=16, sliding_window=4096),), step_tokens=1), 40),
        (BlockRule(groups=(FULL, BlockGroup(block_size=16, count=3, attention_chunk_size=8192)), step_tokens=8191), 9),
    ],
)
def test_few_steps_are_looked_at(rule: BlockRule, most: int) -> None:
    """Even of a prompt without end."""
    steps = list(rule._steps(10**20))
    assert 0 < len(steps) <= most
    assert max(done + scheduled for done, scheduled in steps) == 10**20
    assert rule.prefill_blocks(10**20) > 0


@pytest.mark.parametrize(
    ("rule", "blocks", "tokens"),
    [
        (BlockRule.plain(16), 10, 160),
        (BlockRule(groups=BlockRule.plain(16).groups, state_blocks=2), 10, 128),
        (BlockRule(groups=BlockRule.plain(16).groups, lookahead_tokens=3), 10, 157),
        (BlockRule(groups=(BlockGroup(block_size=16), BlockGroup(block_size=16, sliding_window=32))), 10, 112),
        # What slides in every layer never fills anything.
        (BlockRule(groups=(BlockGroup(block_size=16, sliding_window=32),)), 10, None),
        (BlockRule.plain(16), 0, 0),
    ],
)
def test_the_longest_sequence_that_fits(rule: BlockRule, blocks: int, tokens: int | None) -> None:
    """The last token that needs no block more than there are."""
    assert rule.longest_sequence(blocks) == tokens


@pytest.mark.parametrize(
    ("rule", "shares"),
    [
        (BlockRule.plain(16), True),
        (BlockRule(groups=(FULL,), lookahead_tokens=3, step_tokens=1), True),
        (BlockRule(groups=(BlockGroup(block_size=16, count=2),)), False),
        (BlockRule(groups=(FULL, FULL)), False),
        (BlockRule(groups=(SLIDING,)), False),
        (BlockRule(groups=(CHUNKED,)), False),
        (BlockRule(groups=(FULL,), state_blocks=1), False),
        (BlockRule(groups=(FULL,), ahead=Ahead()), False),
        (BlockRule(groups=()), False),
    ],
)
def test_prefixes_are_shared_where_that_is_plain_arithmetic(rule: BlockRule, shares: bool) -> None:
    """One table of full attention, taken block by block."""
    assert rule.shares_prefixes is shares


@given(st.integers(1, 40), st.sampled_from((0, 3)), st.integers(1, 500), st.integers(0, 200), st.data())
@deterministic
def test_a_prompt_without_its_first_blocks_holds_so_many_fewer(
    size: int, lookahead: int, tokens: int, produced: int, data: st.DataObject
) -> None:
    """However far its answer has come."""
    rule = replace(BlockRule.plain(size), lookahead_tokens=lookahead)
    shared = data.draw(st.integers(0, (tokens - 1) // size))
    less = rule.reached_blocks(tokens - shared * size + produced)
    assert less == rule.reached_blocks(tokens + produced) - shared
