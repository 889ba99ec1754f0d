"""The future peak: how full the cache gets if nothing more is admitted (the Past-Future rule, arXiv 2507.10150).

Sequences grow one token a step in parallel and free everything when they end. With remaining outputs r sorted
descending, just before sequence i ends the first i sequences are alive and each has grown by r_i, so the peak is
`max_i sum_{j<=i} blocks(t_j + r_i)`.

To decide in a bounded time however much is live, sequences whose remaining outputs differ by at most a
sixteenth are summed up in one cell, and the peak is taken over cells. Each sequence counts with exactly what it
holds at its end while its own cell ends, and with what it holds at the end of the cell while a shorter one does. So the
forecast is never below the rule, equal to it where nothing runs for more than 31 tokens or all the same, and above it
by at most what the longer ones grow meanwhile. Of blocks above 32 tokens, remainders are rounded up to 32nds.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add, sub
from typing import Final, Protocol, Self

from kvguard.admission.blocks import BlockGroup, BlockRule, blocks_for
from kvguard.admission.footprint import Demand
from kvguard.admission.population import Population

_FINE_BITS: Final = 4
_FINE: Final = 1 << _FINE_BITS
_MOST_REMAINDERS: Final = 32

# What a sum of sequences holds, and where: how many are alive, their blocks at their ends, and then for each group of
# layers those with a full window, all others, their whole blocks, and how many of them have each remainder.
_ALIVE, _FINAL, _GROUPS = 0, 1, 2
_FULL, _GROWING, _WHOLE, _REMAINDERS = 0, 1, 2, 3

Sums = Sequence[int]
Cells = Mapping[int, Sums]


class Lengths(Protocol):
    """What is known of how long answers get."""

    def expected(self, population: Population, *, cap: int | None, produced: int) -> int | None:
        """Total tokens of an answer that has `produced` so far; None while too little is known."""
        ...


def cell_of(remaining: int) -> int:
    """The cell of so many remaining tokens: one each below 32, then 16 for every doubling."""
    if remaining < 2 * _FINE:
        return remaining
    shift = remaining.bit_length() - 1 - _FINE_BITS
    return (shift << _FINE_BITS) + (remaining >> shift)


def cell_end(cell: int) -> int:
    """Most remaining tokens in the cell."""
    if cell < 2 * _FINE:
        return cell
    shift = (cell >> _FINE_BITS) - 1
    return (((cell & (_FINE - 1)) + _FINE + 1) << shift) - 1


@dataclass(frozen=True, slots=True)
class Course:
    """The sequences of a request from now on: tokens each may still generate, and what they come to together."""

    remaining: int
    sums: tuple[int, ...]

    @property
    def final_blocks(self) -> int:
        """Blocks they hold together just before they end."""
        return self.sums[_FINAL]


NO_COURSE: Final = Course(0, (0, 0))


class _GroupSums:
    """One group's part of the sums: how a sequence enters it, and what all of them hold later.

    With t = q*b + m and r = p*b + s the blocks of a sequence, ceil((t + r) / b), are q + p + [m + s > 0] + [m + s > b],
    so whole blocks and the number of sequences for each remainder m tell those of any sum of sequences.
    """

    def __init__(self, group: BlockGroup, start: int, lookahead_tokens: int) -> None:
        self._start = start
        self._block_size = group.block_size
        self._count = group.count
        self._most = group.most_blocks(lookahead_tokens)
        self._unit = blocks_for(group.block_size, _MOST_REMAINDERS)
        self.end = start + _REMAINDERS + blocks_for(group.block_size, self._unit) + 1

    def enter(self, sums: list[int], tokens: int, copies: int) -> None:
        """Add sequences that have so many tokens, and slots ahead of them."""
        start = self._start
        if self._most is not None and blocks_for(tokens, self._block_size) >= self._most:
            sums[start + _FULL] += copies
            return
        whole, remainder = divmod(tokens, self._block_size)
        sums[start + _GROWING] += copies
        sums[start + _WHOLE] += copies * whole
        sums[start + _REMAINDERS + blocks_for(remainder, self._unit)] += copies

    def held(self, sums: Sums, tokens: int) -> int:
        """Blocks once each sequence has grown by `tokens`."""
        start = self._start
        growing, (whole, part) = sums[start + _GROWING], divmod(tokens, self._block_size)
        blocks = sums[start + _WHOLE] + growing * (whole + 1)
        if part:
            crossing = (self._block_size - part) // self._unit + 1
            blocks += sum(sums[start + _REMAINDERS + crossing : self.end])
        else:
            blocks -= sums[start + _REMAINDERS]
        if self._most is not None:
            blocks = min(blocks, growing * self._most) + sums[start + _FULL] * self._most
        return self._count * blocks


class _Layout:
    """How the sums under one rule are laid out."""

    def __init__(self, rule: BlockRule) -> None:
        self._state_blocks = rule.state_blocks
        self.groups: list[_GroupSums] = []
        self.size = _GROUPS
        for group in rule.groups:
            self.groups.append(_GroupSums(group, self.size, rule.lookahead_tokens))
            self.size = self.groups[-1].end

    def held(self, sums: Sums, tokens: int) -> int:
        """Blocks of all sequences once each has grown by `tokens`."""
        blocks = sums[_ALIVE] * self._state_blocks
        for group in self.groups:
            blocks += group.held(sums, tokens)
        return blocks


class Forecast:
    """The courses of everything live. Adding, removing and asking take a bounded time however many they are."""

    def __init__(self, rule: BlockRule) -> None:
        self.rule = rule
        self._layout = _Layout(rule)
        self._cells: dict[int, list[int]] = {}
        self._profile: Profile | None = None

    @classmethod
    def restored(cls, rule: BlockRule, cells: Cells) -> Self:
        """The forecast that these `cells` were taken of. Raises ValueError when they are not laid out by `rule`."""
        made = cls(rule)
        if any(len(sums) != made._layout.size for sums in cells.values()):
            raise ValueError("the forecast does not fit the block rule")
        made._cells = {cell: list(sums) for cell, sums in cells.items()}
        return made

    @property
    def cells(self) -> Cells:
        """Everything live as it is now, in a form that does not change; `restored` makes a forecast of it again."""
        return dict(self._cells)  # sums are replaced, never changed

    def course(self, demand: Demand, *, produced: int, remaining: int) -> Course:
        """The course of a request whose sequences have generated `produced` tokens and may generate `remaining`."""
        sums = [0] * self._layout.size
        for prompt_tokens, prompts in Counter(demand.prompts).items():
            tokens, copies = prompt_tokens + produced, prompts * demand.copies
            if tokens + remaining:
                sums[_ALIVE] += copies
                sums[_FINAL] += copies * self.rule.reached_blocks(tokens + remaining)
                for group in self._layout.groups:
                    group.enter(sums, tokens + self.rule.lookahead_tokens, copies)
        return Course(remaining, tuple(sums))

    def add(self, course: Course) -> None:
        """Let these sequences run from now on."""
        if course.sums[_ALIVE]:
            cell = cell_of(course.remaining)
            self._cells[cell] = list(map(add, self._cells.get(cell, [0] * self._layout.size), course.sums))
            self._profile = None

    def remove(self, course: Course) -> None:
        """Take back what was added."""
        if course.sums[_ALIVE]:
            cell = cell_of(course.remaining)
            left = list(map(sub, self._cells.pop(cell), course.sums))
            if left[_ALIVE]:
                self._cells[cell] = left
            self._profile = None

    @property
    def profile(self) -> "Profile":
        """How full it gets, as things stand."""
        if self._profile is None:
            self._profile = Profile(self._cells, self._layout)
        return self._profile


class Profile:
    """Blocks held from now until everything has ended, at its worst within each cell of time."""

    def __init__(self, cells: Mapping[int, list[int]], layout: _Layout) -> None:
        self._layout = layout
        self._ends: list[int] = []
        self._blocks: list[int] = []
        self._final: list[int] = []
        # What outlives each cell; the first is everything, the last nothing.
        self._longer = [[0] * layout.size]
        for cell in sorted(cells, reverse=True):
            end, sums, longer = cell_end(cell), cells[cell], self._longer[-1]
            self._ends.append(end)
            self._final.append(sums[_FINAL])
            self._blocks.append(layout.held(longer, end) + sums[_FINAL])
            self._longer.append(list(map(add, longer, sums)))
        for listed in (self._ends, self._blocks, self._final, self._longer):
            listed.reverse()

    @property
    def peak(self) -> int:
        """Most blocks ever held at once."""
        return max(self._blocks, default=0)

    def peak_with(self, course: Course) -> int:
        """The same with one more request that starts now."""
        cell = cell_of(course.remaining)
        shorter = bisect_left(self._ends, cell_end(cell))
        in_cell = shorter < len(self._ends) and self._ends[shorter] == cell_end(cell)
        longer = self._longer[shorter + 1 if in_cell else shorter]
        final = course.final_blocks
        peak = self._layout.held(longer, course.remaining) + final + (self._final[shorter] if in_cell else 0)
        for end, blocks in zip(self._ends[:shorter], self._blocks, strict=False):
            if blocks + final > peak:
                peak = max(peak, blocks + self._layout.held(course.sums, end))
        return max(peak, max(self._blocks[shorter:], default=0))

    def tokens_until(self, blocks: float) -> int | None:
        """Tokens each sequence generates until no more than `blocks` are ever held again; None if that is never.

        0 where it never gets fuller than that.
        """
        if blocks < 0:
            return None
        for end, held in zip(reversed(self._ends), reversed(self._blocks), strict=True):
            if held > blocks:
                return end
        return 0


def remaining_output(demand: Demand, produced: int, lengths: Lengths) -> int:
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
