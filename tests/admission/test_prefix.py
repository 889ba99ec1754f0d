"""Who goes through which segments: the index by itself, in blocks of 16 tokens and marks every four of them."""

from dataclasses import replace

import pytest

from kvguard.admission.blocks import Ahead, BlockRule
from kvguard.admission.prefix import PrefixMatch, SharedPrefixes
from tests.admission.build import RULE, marks

LONG = 1000


def prefixes(*paths: tuple[int, ...], copies: int = 1, rule: BlockRule = RULE) -> SharedPrefixes:
    """Owners 0, 1, 2 ... with prompts that take these turns, each a second after the one before."""
    built = SharedPrefixes(rule)
    for owner, path in enumerate(paths):
        built.enter(owner, marks(*path), prompt_tokens=LONG, copies=copies, began=float(owner))
    return built


@pytest.mark.parametrize(
    ("paths", "copies", "blocks", "leading"),
    [
        ([], 1, 0, []),
        ([(0, 0)], 1, 0, [0]),
        ([(0, 0), (1, 1)], 1, 0, [0, 0]),
        ([(0, 0), (0, 0)], 1, 8, [8, 8]),
        ([(0, 0), (0, 1)], 1, 4, [4, 4]),
        ([(0, 0), (0,)], 1, 4, [4, 4]),
        ([(0, 0, 0), (0, 0, 1), (0, 1)], 1, 8, [8, 8, 4]),
        ([(0, 0), (0, 0), (1,), (1,)], 1, 12, [8, 8, 4, 4]),
        # Copies share with each other.
        ([(0, 0)], 3, 8, [8]),
        ([(0, 0), (0, 1)], 3, 12, [8, 8]),
    ],
)
def test_a_segment_of_two_sequences_counts_once(
    paths: list[tuple[int, ...]], copies: int, blocks: int, leading: list[int]
) -> None:
    """And each of its owners knows how many of its leading blocks that are."""
    built = prefixes(*paths, copies=copies)
    assert built.blocks == blocks
    assert [built.leading_blocks(owner) for owner in range(len(paths))] == leading


def test_who_had_segments_alone_is_named() -> None:
    """It is one owner at most: on entering the one who had the deepest, on leaving the one who is left with them."""
    built = SharedPrefixes(RULE)
    entering = [
        built.enter(owner, marks(*path), prompt_tokens=LONG, copies=1, began=0.0)
        for owner, path in enumerate([(0, 0, 0), (0, 0, 1), (0, 0, 1), (0, 1), (1,)])
    ]
    assert entering == [None, 0, 1, None, None]
    assert [built.leave(owner) for owner in (4, 3, 0, 2, 1)] == [None, None, None, 1, None]
    assert (built.blocks, built._segments, built._paths) == (0, {}, {})


def test_copies_are_never_alone() -> None:
    """A second request changes nothing for a request of several sequences."""
    built = prefixes((0, 0), copies=2)
    assert built.enter(1, marks(0, 0), prompt_tokens=LONG, copies=1, began=0.0) is None
    assert (built.leave(0), built.leading_blocks(1), built.blocks) == (1, 0, 0)


@pytest.mark.parametrize(
    ("prompt_tokens", "blocks"), [(64, 0), (65, 4), (128, 4), (129, 8), (192, 8), (193, 12), (1000, 12)]
)
def test_the_last_token_is_always_computed(prompt_tokens: int, blocks: int) -> None:
    """Of a prompt that ends within what it has in common, the block of its last token is its own."""
    built = prefixes((0, 0, 0))
    built.enter(1, marks(0, 0, 0), prompt_tokens=prompt_tokens, copies=1, began=0.0)
    assert built.blocks == built.leading_blocks(1) == blocks


@pytest.mark.parametrize(("lookahead", "blocks"), [(0, 8), (1, 7), (3, 7)])
def test_an_engine_that_looks_ahead_computes_the_last_block_it_finds(lookahead: int, blocks: int) -> None:
    """So the last block in common is held twice."""
    assert prefixes((0, 0), (0, 0), rule=replace(RULE, lookahead_tokens=lookahead)).blocks == blocks


def test_the_first_decides_how_many_blocks_a_segment_has() -> None:
    """Whoever takes it for longer or shorter goes by that, as long as anyone is in it."""
    built = SharedPrefixes(RULE)
    for owner, more in enumerate((0, 60, -30)):
        built.enter(owner, marks(0, 0, more=more), prompt_tokens=LONG, copies=1, began=0.0)
    assert built.blocks == 8
    assert built.leave(0) is None
    assert [built.leading_blocks(owner) for owner in (1, 2)] == [8, 8]
    built.enter(3, marks(0, 0, 0, more=-100), prompt_tokens=LONG, copies=2, began=0.0)
    assert [built.leading_blocks(owner) for owner in (1, 2, 3)] == [8, 8, 8]


@pytest.mark.parametrize(
    ("paths", "asked", "prompt_tokens", "match", "alone"),
    [
        ([], (0, 0), LONG, PrefixMatch(own=8), None),
        ([(1,)], (0, 0), LONG, PrefixMatch(own=8), None),
        ([(0, 0)], (0, 0), LONG, PrefixMatch(matched=8, own=8), 0),
        ([(0, 0)], (0, 1), LONG, PrefixMatch(matched=4, own=8), 0),
        ([(0, 0, 0), (0, 0, 1)], (0, 0, 1, 1), LONG, PrefixMatch(shared=8, matched=12, own=16), 1),
        ([(0, 0), (0, 0)], (0, 0, 0), LONG, PrefixMatch(shared=8, matched=8, own=12), None),
        # A short prompt has its last block for itself.
        ([(0, 0)], (0, 0), 128, PrefixMatch(matched=4, own=4), 0),
        ([], (0, 0, 0), 192, PrefixMatch(own=8), None),
        ([], (0,), 64, PrefixMatch(), None),
    ],
)
def test_a_prompt_finds_what_others_hold(
    paths: list[tuple[int, ...]], asked: tuple[int, ...], prompt_tokens: int, match: PrefixMatch, alone: int | None
) -> None:
    """What several share, what one holds, and whose that is; looking changes nothing."""
    built = prefixes(*paths)
    for _ in range(2):
        assert built.match(marks(*asked), prompt_tokens) == (match, alone)


@pytest.mark.parametrize(
    ("match", "copies", "saved"),
    [
        (PrefixMatch(), 1, 0),
        (PrefixMatch(own=8), 1, 0),
        (PrefixMatch(own=8), 3, 16),
        (PrefixMatch(shared=2, matched=5, own=8), 1, 5),
        (PrefixMatch(shared=2, matched=5, own=8), 3, 21),
    ],
)
def test_all_that_is_matched_is_saved_now(match: PrefixMatch, copies: int, saved: int) -> None:
    """Each copy but one has its whole beginning from the others."""
    assert match.saved(copies) == saved


@pytest.mark.parametrize(
    "rule",
    [
        BlockRule(groups=(*RULE.groups, *RULE.groups)),
        BlockRule(groups=RULE.groups, ahead=Ahead()),
    ],
)
def test_where_sharing_is_not_known_nothing_is_shared(rule: BlockRule) -> None:
    """Layers with tables of their own may share otherwise, and who reserves for whole prompts shares nothing."""
    built = prefixes((0, 0), (0, 0), rule=rule)
    assert built.blocks == 0
    assert built.match(marks(0, 0), LONG) == (PrefixMatch(), None)


@pytest.mark.parametrize(("moment", "before", "fresh"), [(0.0, 0, 12), (0.5, 8, 4), (2.0, 8, 4), (2.5, 12, 0)])
def test_blocks_are_as_old_as_the_first_who_held_them(moment: float, before: int, fresh: int) -> None:
    """Whether a scrape has seen them depends on nobody who came later, nor on whether the first is still there."""
    for marked_first in (True, False):
        built = SharedPrefixes(RULE, marked_at=moment if marked_first else 99.0)
        for owner, path in enumerate([(0, 0), (0, 0), (1,), (1,), (0, 0)]):
            built.enter(owner, marks(*path), prompt_tokens=LONG, copies=1, began=float(owner))
        if not marked_first:
            built.mark(moment)
        assert (built.blocks_before(moment), built.fresh_blocks) == (before, fresh)
        built.leave(0)
        assert (built.blocks_before(moment), built.fresh_blocks) == (before, fresh)


@pytest.mark.parametrize(
    ("owners", "blocks"), [([], 0), ([0], 8), ([2], 4), ([0, 2], 8), ([3, 4], 4), ([2, 3], 8), ([9], 0)]
)
def test_blocks_of_some_owners(owners: list[int], blocks: int) -> None:
    """Those shared blocks that at least one of them holds."""
    built = prefixes((0, 0), (0, 0), (0, 1), (1,), (1, 1), (2,))
    assert built.blocks_of(owners) == blocks
