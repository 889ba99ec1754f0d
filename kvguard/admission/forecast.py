"""The future peak: how full the cache gets if nothing more is admitted (the Past-Future rule, arXiv 2507.10150).

Sequences grow one token a step in parallel and free everything when they end. With remaining outputs r sorted
descending, just before sequence i ends the first i sequences are alive and each has grown by r_i, so the peak is
`max_i sum_{j<=i} blocks(t_j + r_i)`. It is computed exactly, in whole blocks of every group the model has. Equal
sequences count as one, so that a request for many copies costs no more than a request for one.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from kvguard.admission.blocks import BlockGroup, BlockRule, blocks_for
from kvguard.admission.footprint import Demand
from kvguard.admission.lengths import OutputLengths

_BUCKET: Final = 64


@dataclass(frozen=True, slots=True)
class Course:
    """Equal sequences from now on: tokens each holds, tokens each may still generate, and how many they are."""

    tokens: int
    remaining: int
    copies: int = 1


def peak_blocks(courses: Iterable[Course], rule: BlockRule) -> int:
    """Most blocks the courses ever hold at once."""
    sums = [_GroupSum(group, rule.lookahead_tokens) for group in rule.groups]
    alive = peak = 0
    for course in sorted(courses, key=attrgetter("remaining"), reverse=True):
        alive += course.copies if course.tokens + course.remaining else 0
        held = alive * rule.state_blocks
        for group in sums:
            group.add(course.tokens, course.copies)
            held += group.held(course.remaining)
        peak = max(peak, held)
    return peak


class _GroupSum:
    """Blocks of the sequences alive in one kind of group after each has grown by ever fewer tokens.

    With t = q*b + m and r = p*b + s the term ceil((t + r) / b) is q + p + [m + s > 0] + [m + s > b], so the number of
    sequences for each m answers each step. A windowed group holds at most `most_blocks` of a sequence: sequences
    count as full until the growth asked about is too little to fill them, shortest first.
    """

    def __init__(self, group: BlockGroup, lookahead_tokens: int) -> None:
        self._size = group.block_size
        self._count = group.count
        self._most = group.most_blocks(lookahead_tokens)
        self._ahead = lookahead_tokens
        self._whole = self._growing = self._without_rest = self._full = 0
        self._full_by_tokens: list[tuple[int, int]] = []
        self._by_remainder = _Counts(group.block_size)

    def add(self, tokens: int, copies: int) -> None:
        if self._most is None:
            self._grow(tokens + self._ahead, copies)
            return
        self._full += copies
        heapq.heappush(self._full_by_tokens, (tokens + self._ahead, copies))

    def held(self, remaining: int) -> int:
        """Blocks once all added have grown by `remaining`, which is at most what was asked before."""
        while self._most is not None and self._full_by_tokens:
            tokens, copies = self._full_by_tokens[0]
            if blocks_for(tokens + remaining, self._size) >= self._most:
                break
            heapq.heappop(self._full_by_tokens)
            self._full -= copies
            self._grow(tokens, copies)
        grown, part = divmod(remaining, self._size)
        begun = self._growing if part else self._growing - self._without_rest
        crossed = self._by_remainder.above(self._size - part) if part else 0
        blocks = self._whole + self._growing * grown + begun + crossed
        return self._count * (blocks + self._full * (self._most or 0))

    def _grow(self, tokens: int, copies: int) -> None:
        quotient, remainder = divmod(tokens, self._size)
        self._whole += quotient * copies
        self._growing += copies
        self._without_rest += 0 if remainder else copies
        self._by_remainder.add(remainder, copies)


class _Counts:
    """How many have each remainder. Buckets keep blocks of thousands of tokens nearly as cheap as small ones."""

    def __init__(self, size: int) -> None:
        self._each = [0] * size
        self._buckets = [0] * (size // _BUCKET + 1)

    def add(self, remainder: int, copies: int) -> None:
        self._each[remainder] += copies
        self._buckets[remainder // _BUCKET] += copies

    def above(self, remainder: int) -> int:
        """How many have more than `remainder`."""
        bucket = (remainder + 1) // _BUCKET
        return sum(self._each[remainder + 1 : (bucket + 1) * _BUCKET]) + sum(self._buckets[bucket + 1 :])


def remaining_output(demand: Demand, produced: int, lengths: OutputLengths) -> int:
    """Tokens a sequence of `demand` may still generate after `produced`; the cap always bounds them.

    What was learned decides, what is expected of the request while nothing is; an answer that outlived both is taken
    to be half done. A lowered cap only cuts short what was learned of such requests.
    """
    total = (
        None if demand.fixed_length else lengths.expected(demand.population, cap=demand.asked_cap, produced=produced)
    )
    if total is None:
        total = demand.expected_output if produced < demand.expected_output else 2 * produced
    total = max(total, demand.min_tokens)
    return max(0, (total if demand.output_cap is None else min(total, demand.output_cap)) - produced)


def courses_of(demand: Demand, produced: int, lengths: OutputLengths) -> Iterator[Course]:
    """The futures of a request's sequences, equal ones as one."""
    remaining = remaining_output(demand, produced, lengths)
    for prompt_tokens, prompts in Counter(demand.prompts).items():
        yield Course(prompt_tokens + produced, remaining, demand.copies * prompts)
