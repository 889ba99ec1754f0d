"""Tokens to blocks, one sequence and many."""

import pytest
from hypothesis import given

from kvguard.admission.blocks import BlockGroup, BlockRule, Surge
from kvguard.admission.footprint import MANY_PROMPTS, Demand
from tests.admission.build import RULE, block_rules, demand, demands
from tests.kit.properties import deterministic


@pytest.mark.parametrize(("prompt", "output", "blocks"), [(16, 17, 3), (1, 16, 2), (17, 16, 3), (33, 100, 9)])
def test_a_reservation_is_prompt_plus_expected_output(prompt: int, output: int, blocks: int) -> None:
    """Prompt and output share their blocks: they are added before they are rounded."""
    assert demand(prompt, cap=output).reserved_blocks(RULE) == blocks


@pytest.mark.parametrize(
    ("prompts", "copies", "cap", "sequences", "prompt_tokens", "prompt_blocks", "reserved_blocks"),
    [
        ((16,), 1, 16, 1, 16, 1, 2),
        ((10, 20, 30), 2, 20, 6, 60, 10, 18),
        ((10, 20, 30), 1, 20, 3, 60, 5, 9),
        ((16, 17), 3, 1, 6, 33, 9, 12),
        ((0,), 1, 1, 1, 0, 0, 1),
        ((), 4, 16, 0, 0, 0, 0),
    ],
)
def test_every_prompt_and_every_copy_counts(
    prompts: tuple[int, ...],
    copies: int,
    cap: int,
    sequences: int,
    prompt_tokens: int,
    prompt_blocks: int,
    reserved_blocks: int,
) -> None:
    """Blocks are rounded per sequence; prompt tokens count once per prompt, as the engine's usage does."""
    asked = Demand(prompts=prompts, copies=copies, output_cap=cap, asked_cap=cap, expected_output=cap)
    assert asked.sequences == sequences
    assert asked.prompt_tokens == prompt_tokens
    assert asked.prompt_blocks(RULE) == prompt_blocks
    assert asked.reserved_blocks(RULE) == reserved_blocks


@pytest.mark.parametrize(("prompts", "blocks"), [((), 0), ((16,), 1), ((17,), 2), ((1, 33, 16), 3)])
def test_the_largest_prompt_decides_what_can_run(prompts: tuple[int, ...], blocks: int) -> None:
    """Only the longest prompt counts, in blocks of one sequence, whatever the number of copies."""
    asked = Demand(prompts=prompts, copies=7, output_cap=1, asked_cap=1, expected_output=1)
    assert asked.largest_prompt_blocks(RULE) == blocks


@pytest.mark.parametrize(
    ("cap", "expected", "new_cap", "new_expected"),
    [
        (1024, 1024, 512, 512),
        (1024, 511, 512, 511),
        (1024, 512, 512, 512),
        (1024, 513, 512, 512),
        (None, 512, 64, 64),
        (None, 512, 513, 512),
    ],
)
def test_a_lower_cap_bounds_what_is_expected(cap: int | None, expected: int, new_cap: int, new_expected: int) -> None:
    """The expectation follows the cap down and is never raised by it; what was asked for is remembered."""
    lowered = demand(5, cap=cap, expected=expected, min_tokens=3).with_cap(new_cap)
    assert lowered == demand(5, cap=new_cap, expected=new_expected, min_tokens=3, asked_cap=cap)


def test_one_sequence_keeps_every_prompt() -> None:
    """Copies go, prompts and caps stay, and what is left is no beam search any more."""
    assert demand(5, 6, cap=9, copies=4, beams=True).with_one_sequence() == demand(5, 6, cap=9)


@deterministic
@given(asked=demands(), rule=block_rules())
def test_blocks_are_those_of_the_sequences_one_by_one(asked: Demand, rule: BlockRule) -> None:
    """Prompt, surge and reserved blocks equal a count over each sequence's tokens by the rule."""
    lengths = [tokens for tokens in asked.prompts for _ in range(asked.copies)]
    assert len(lengths) == asked.sequences
    assert asked.prompt_blocks(rule) == sum(rule.reached_blocks(tokens) for tokens in lengths)
    assert asked.reserved_blocks(rule) == sum(rule.reached_blocks(n + asked.expected_output) for n in lengths)
    assert asked.surge(rule).blocks == sum(rule.surge(tokens).blocks for tokens in lengths)


def test_a_prefill_surges_only_where_layers_forget() -> None:
    """With full attention the prompt's blocks are all there is; a window holds more while the prompt is computed."""
    windowed = BlockRule(groups=(BlockGroup(block_size=16, sliding_window=32),), step_tokens=160)
    assert demand(320, 16, copies=2).surge(RULE) == Surge()
    # ceil((160 + 160) / 16) - (160 - 32 + 1) // 16 = 12 in the second step, 3 afterwards; 16 tokens never surge
    assert demand(320, 16, copies=2).surge(windowed) == Surge(2 * 9, 2)


@pytest.mark.parametrize("number", [MANY_PROMPTS - 1, MANY_PROMPTS, 4 * MANY_PROMPTS])
@deterministic
@given(block_rules())
def test_many_prompts_hold_what_they_hold_one_by_one(number: int, rule: BlockRule) -> None:
    """However their blocks are added up, and whatever they generate."""
    prompts = tuple(7 * place % 50 for place in range(number))
    for produced in (0, 5):
        alone = sum(demand(tokens, copies=2).held_blocks(rule, produced=produced) for tokens in prompts)
        assert demand(*prompts, copies=2).held_blocks(rule, produced=produced) == alone
