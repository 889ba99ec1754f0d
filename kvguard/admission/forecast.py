"""The future peak: how full the cache gets if nothing more is admitted (the Past-Future rule, arXiv 2507.10150).

Sequences grow one token a step in parallel and free everything when they end. With remaining outputs r sorted
descending, just before sequence i ends the first i sequences are alive and each has grown by r_i, so the peak is
`max_i sum_{j<=i} ceil((t_j + r_i) / block)`. It is computed exactly, in whole blocks, in O(n log n) comparisons.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Course:
    """One sequence from now on: tokens it holds and tokens it may still generate."""

    tokens: int
    remaining: int


def peak_blocks(courses: Iterable[Course], block_size: int) -> int:
    """Most blocks the courses ever hold at once.

    With t = q*b + m and r = p*b + s the term ceil((t + r) / b) is q + p + [m + s > 0] + [m + s > b], so a sorted list
    of the remainders m answers each step by bisection.
    """
    remainders: list[int] = []
    whole = peak = 0
    for course in sorted(courses, key=lambda course: -course.remaining):
        quotient, remainder = divmod(course.tokens, block_size)
        whole += quotient
        insort(remainders, remainder)
        alive = len(remainders)
        grown, part = divmod(course.remaining, block_size)
        begun = alive - bisect_right(remainders, -part)
        crossed = alive - bisect_right(remainders, block_size - part)
        peak = max(peak, whole + alive * grown + begun + crossed)
    return peak


def expected_remaining(*, produced: int, expected: int, cap: int | None) -> int:
    """Tokens a sequence may still generate.

    An answer that outlived what was expected of it is taken to be half done; the cap always bounds it.
    """
    remaining = expected - produced if produced < expected else produced
    return remaining if cap is None else max(0, min(remaining, cap - produced))
