"""Ratios of tokens to bytes, and how far they can be trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.tokenization.learned import LearnedCount, LearnedPolicy, LearnedRatios, PromptKind
from tests.kit.properties import deterministic

TEXT, CHAT = PromptKind.TEXT, PromptKind.CHAT


def taught(*answers: tuple[int, int], kind: PromptKind = TEXT, **policy: object) -> LearnedRatios:
    """What is known after prompts of so many bytes had so many tokens, believed from the first one on."""
    ratios = LearnedRatios(LearnedPolicy(**{"min_answers": 1, **policy}))
    for size_bytes, tokens in answers:
        ratios.observe("m", kind, size_bytes=size_bytes, tokens=tokens)
    return ratios


@pytest.mark.parametrize(
    ("kind", "size_bytes", "count"),
    [
        # 400 bytes of usual text are 100 tokens and one special; a third more is within reach.
        (TEXT, 400, LearnedCount(101, 35)),
        (TEXT, 0, LearnedCount(1, 1)),
        (CHAT, 400, LearnedCount(116, 40)),
    ],
)
def test_before_anything_is_known_text_counts_as_usual(kind: PromptKind, size_bytes: int, count: LearnedCount) -> None:
    """The prior errs on the high side, and a conversation has its template's tokens besides."""
    assert LearnedRatios(LearnedPolicy()).count("m", kind, size_bytes) == count


def test_a_ratio_is_believed_after_enough_answers() -> None:
    """Eight answers make one; seven do not."""
    ratios = taught(*[(300, 100)] * 7, min_answers=8)
    assert ratios.count("m", TEXT, 600) == LearnedCount(151, 52)
    ratios.observe("m", TEXT, size_bytes=300, tokens=100)
    assert ratios.count("m", TEXT, 600) == LearnedCount(200, 0)


def test_the_error_is_what_nearly_all_answers_stayed_within() -> None:
    """Nineteen of twenty with 1 token in 3 bytes and one with half as many again: the one is beyond what is covered."""
    ratios = taught(*[(300, 100)] * 19, (300, 150), coverage=0.95)
    # 2050 tokens over 6000 bytes; 95 % of the answers have less than that.
    assert ratios.count("m", TEXT, 6000) == LearnedCount(2050, 0)
    # With another of its kind one in ten is, and the error covers them: 150 / (300 * 2100 / 6000) - 1 = 0.4286.
    ratios = taught(*[(300, 100)] * 18, *[(300, 150)] * 2, coverage=0.95)
    assert ratios.count("m", TEXT, 6000) == LearnedCount(2100, 901)


def test_old_answers_are_forgotten() -> None:
    """Only the last ones of the window count."""
    ratios = taught(*[(300, 100)] * 4, *[(300, 200)] * 4, window=4)
    assert ratios.count("m", TEXT, 300) == LearnedCount(200, 0)


def test_models_and_kinds_are_learned_apart() -> None:
    """What one model's text has says nothing of another's, nor of conversations."""
    ratios = taught(*[(300, 100)] * 8)
    prior = LearnedRatios(LearnedPolicy())
    assert ratios.count("other", TEXT, 300) == prior.count("other", TEXT, 300)
    assert ratios.count("m", CHAT, 300) == prior.count("m", CHAT, 300)


def test_the_least_recently_heard_of_is_forgotten() -> None:
    """The number of ratios is bounded, and what is in use stays."""
    ratios = LearnedRatios(LearnedPolicy(min_answers=1, max_ratios=2))
    for model in ("a", "b", "a", "c"):
        ratios.observe(model, TEXT, size_bytes=30, tokens=10)
    assert ratios.count("a", TEXT, 300) == LearnedCount(100, 0)
    assert ratios.count("c", TEXT, 300) == LearnedCount(100, 0)
    assert ratios.count("b", TEXT, 300) != LearnedCount(100, 0)


@pytest.mark.parametrize(("size_bytes", "tokens"), [(0, 5), (5, 0), (6401, 100), (-1, 5)])
def test_figures_that_cannot_be_the_prompts_teach_nothing(size_bytes: int, tokens: int) -> None:
    """Nothing, less than nothing and more bytes a token than any vocabulary has are left out."""
    assert taught((size_bytes, tokens)).count("m", TEXT, 300) == taught().count("m", TEXT, 300)


@deterministic
@given(
    answers=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=8, max_size=40),
    size_bytes=st.integers(0, 100_000),
)
def test_more_bytes_are_never_fewer_tokens(answers: list[tuple[int, int]], size_bytes: int) -> None:
    """Whatever was learned, counts and bounds grow with the prompt and are never negative."""
    ratios = taught(*answers)
    small, large = ratios.count("m", TEXT, size_bytes), ratios.count("m", TEXT, size_bytes + 1)
    assert 0 <= small.tokens <= large.tokens
    assert 0 <= small.slack <= large.slack
