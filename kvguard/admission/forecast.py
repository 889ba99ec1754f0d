"""The future peak: how full the cache gets if nothing more is admitted (the Past-Future rule, arXiv 2507.10150).

Sequences grow one token a step in parallel and free everything when they end. With remaining outputs r sorted
descending, just before sequence i ends the first i sequences are alive and each has grown by r_i, so the peak is
`max_i sum_{j<=i} ceil((t_j + r_i) / block)`. It is computed exactly, in whole blocks. Equal sequences count as one, so
that a request for many copies costs no more than a request for one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from kvguard.admission.footprint import Demand
from kvguard.admission.lengths import OutputLengths


@dataclass(frozen=True, slots=True)
class Course:
    """Equal sequences from now on: tokens each holds, tokens each may still generate, and how many they are."""

    tokens: int
    remaining: int
    copies: int = 1


def peak_blocks(courses: Iterable[Course], block_size: int) -> int:
    """Most blocks the courses ever hold at once.

    With t = q*b + m and r = p*b + s the term ceil((t + r) / b) is q + p + [m + s > 0] + [m + s > b], so the number of
    sequences alive for each m answers each step.
    """
    alive_by_remainder = [0] * block_size
    whole = alive = peak = 0
    for course in sorted(courses, key=attrgetter("remaining"), reverse=True):
        quotient, remainder = divmod(course.tokens, block_size)
        whole += quotient * course.copies
        alive += course.copies
        alive_by_remainder[remainder] += course.copies
        grown, part = divmod(course.remaining, block_size)
        begun = alive if part else alive - alive_by_remainder[0]
        crossed = sum(alive_by_remainder[block_size - part + 1 :])
        peak = max(peak, whole + alive * grown + begun + crossed)
    return peak


def remaining_output(demand: Demand, produced: int, lengths: OutputLengths) -> int:
    """Tokens a sequence of `demand` may still generate after `produced`; the cap always bounds them.

    What was learned decides, what is expected of the request while nothing is; an answer that outlived both is taken
    to be half done. A lowered cap only cuts short what was learned of such requests.
    """
    total = None if demand.fixed_length else lengths.expected(cap=demand.asked_cap, produced=produced)
    if total is None:
        total = demand.expected_output if produced < demand.expected_output else 2 * produced
    total = max(total, demand.min_tokens)
    return max(0, (total if demand.output_cap is None else min(total, demand.output_cap)) - produced)


def courses_of(demand: Demand, produced: int, lengths: OutputLengths) -> Iterator[Course]:
    """The futures of a request's sequences, equal ones as one."""
    remaining = remaining_output(demand, produced, lengths)
    for prompt_tokens, prompts in Counter(demand.prompts).items():
        yield Course(prompt_tokens + produced, remaining, demand.copies * prompts)
