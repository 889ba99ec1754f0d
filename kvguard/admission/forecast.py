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

import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Final, Protocol, Self

from kvguard.admission.blocks import BlockGroup, BlockRule, blocks_for
from kvguard.admission.footprint import Demand
from kvguard.admission.population import Population
from kvguard.admission.prefix import NO_MATCH, PrefixMatch

_FINE_BITS: Final = 4
_FINE: Final = 1 << _FINE_BITS
_MOST_REMAINDERS: Final = 32

# All that is summed up of sequences is one integer of 64-bit words, so that adding sequences is a single addition, ten
# times as fast as adding lists. A number of sequences is one word, one of blocks two: neither can ever overflow. First
# come those alive and the blocks they hold at their ends, then the words of each group.
_WORD: Final = 64
_COUNT: Final = (1 << _WORD) - 1
_BLOCKS: Final = (1 << 2 * _WORD) - 1
_FINAL: Final = _WORD
_HEAD: Final = (1 << 3 * _WORD) - 1
_GROUPS: Final = 3 * _WORD

Cells = Mapping[int, Sequence[int]]


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


@cache
def cell_end(cell: int) -> int:
    """Most remaining tokens in the cell."""
    if cell < 2 * _FINE:
        return cell
    shift = (cell >> _FINE_BITS) - 1
    return (((cell & (_FINE - 1)) + _FINE + 1) << shift) - 1


@dataclass(frozen=True, slots=True)
class Course:
    """The sequences of a request from now on: tokens each may still generate, and what they come to together.

    `shared_blocks` are held once among them, from beginning to end. `kept_blocks` are another's, who gives them up
    after `kept_after` tokens: from then on they are theirs.
    """

    remaining: int
    sums: int
    shared_blocks: int = 0
    kept_blocks: int = 0
    kept_after: int = 0

    @property
    def final_blocks(self) -> int:
        """Blocks they hold together just before they end."""
        return (self.sums >> _FINAL & _BLOCKS) + self.shared_blocks + self.kept_blocks


NO_COURSE: Final = Course(0, 0)


class _GroupSums:
    """One group's words of the sums: how a sequence enters them, and what all of them hold later.

    With t = q*b + m and r = p*b + s the blocks of a sequence, ceil((t + r) / b), are q + p + [m + s > 0] + [m + s > b],
    so whole blocks and the number of sequences with at least each remainder m tell those of any sum of sequences.
    """

    def __init__(self, group: BlockGroup, start: int, lookahead_tokens: int) -> None:
        self._block_size = group.block_size
        self._count = group.count
        self._most = group.most_blocks(lookahead_tokens)
        self._unit = blocks_for(group.block_size, _MOST_REMAINDERS)
        # Whole blocks, those with a full window, and all others by their remainders: at least 0, 1, 2 ... units.
        self._whole, self._full, self._growing = start, start + 2 * _WORD, start + 3 * _WORD
        remainders = range(blocks_for(group.block_size, self._unit) + 1)
        self._with_remainder = [sum(1 << self._growing + _WORD * m for m in range(most + 1)) for most in remainders]
        self.end = self._growing + _WORD * len(remainders)
        self.rounding_blocks = group.count if self._unit > 1 else 0

    def entry(self, tokens: int) -> int:
        """What one sequence adds that has so many tokens, slots ahead of them included."""
        if self._most is not None and blocks_for(tokens, self._block_size) >= self._most:
            return 1 << self._full
        whole, remainder = divmod(tokens, self._block_size)
        return (whole << self._whole) + self._with_remainder[blocks_for(remainder, self._unit)]

    def held(self, sums: int, tokens: int) -> int:
        """Blocks once each sequence has grown by `tokens`."""
        growing, (whole, part) = sums >> self._growing & _COUNT, divmod(tokens, self._block_size)
        crossing = (self._block_size - part) // self._unit + 1 if part else 1
        blocks = (sums >> self._whole & _BLOCKS) + growing * (whole + (part > 0))
        blocks += sums >> self._growing + _WORD * crossing & _COUNT
        if self._most is not None:
            blocks = min(blocks, growing * self._most) + (sums >> self._full & _COUNT) * self._most
        return self._count * blocks


class _Layout:
    """How the sums under one rule are laid out."""

    def __init__(self, rule: BlockRule) -> None:
        self._state_blocks = rule.state_blocks
        self._constant = rule.ahead is not None
        self.groups: list[_GroupSums] = []
        end = _GROUPS
        for group in () if self._constant else rule.groups:
            self.groups.append(_GroupSums(group, end, rule.lookahead_tokens))
            end = self.groups[-1].end
        self.words = struct.Struct(f"<{end // _WORD}Q")
        # Where remainders are rounded up a sequence may seem to hold so much more than at its end.
        self.rounding_blocks = sum(group.rounding_blocks for group in self.groups)

    def held(self, sums: int, tokens: int) -> int:
        """Blocks of all sequences once each has grown by `tokens`; what is reserved ahead counts whole at once."""
        if self._constant:
            return (sums & _HEAD) >> _FINAL
        blocks = (sums & _COUNT) * self._state_blocks if self._state_blocks else 0
        for group in self.groups:
            blocks += group.held(sums, tokens)
        return blocks


class Forecast:
    """The courses of everything live. Adding, removing and asking take a bounded time however many they are.

    What sequences share with each other is in no course; it counts as held until all of them have ended.
    """

    def __init__(self, rule: BlockRule) -> None:
        self.rule = rule
        self._layout = _Layout(rule)
        self._cells: dict[int, int] = {}
        self._shared_blocks = 0
        self._profile: Profile | None = None

    @classmethod
    def restored(cls, rule: BlockRule, cells: Cells, *, shared_blocks: int = 0) -> Self:
        """The forecast that these `cells` were taken of. Raises ValueError when they are not laid out by `rule`."""
        made = cls(rule)
        made.share(shared_blocks)
        words = made._layout.words
        try:
            made._cells = {cell: int.from_bytes(words.pack(*sums), "little") for cell, sums in cells.items()}
        except struct.error as error:
            raise ValueError("the forecast does not fit the block rule") from error
        return made

    @property
    def cells(self) -> Cells:
        """Everything live as it is now, in a form that does not change; `restored` makes a forecast of it again."""
        words = self._layout.words
        return {cell: list(words.unpack(sums.to_bytes(words.size, "little"))) for cell, sums in self._cells.items()}

    def course(self, demand: Demand, *, produced: int, remaining: int, match: PrefixMatch = NO_MATCH) -> Course:
        """The course of a request whose sequences have generated `produced` tokens and may generate `remaining`.

        What others hold of its prompt is not in it unless it outlives them, and what only its own sequences share is in
        it once.
        """
        if match is NO_MATCH:
            return Course(remaining, self._sums(demand, produced, remaining))
        leading = match.own if demand.copies > 1 else match.matched
        sums = self._sums(demand.without_leading(leading * self.rule.block_size), produced, remaining)
        kept_after = cell_end(cell_of(match.owner_remaining))
        kept = match.matched - match.shared if remaining > kept_after else 0
        return Course(remaining, sums, leading - match.matched, kept, kept_after)

    def _sums(self, demand: Demand, produced: int, remaining: int) -> int:
        sums = 0
        for prompt_tokens, prompts in Counter(demand.prompts).items():
            tokens = prompt_tokens + produced
            if tokens + remaining:
                final = demand.sequence_blocks(self.rule, prompt_tokens, produced + remaining)
                one = 1 + (final << _FINAL)
                for group in self._layout.groups:
                    one += group.entry(tokens + self.rule.lookahead_tokens)
                sums += prompts * demand.copies * one
        return sums

    def share(self, blocks: int) -> None:
        """Let so many blocks be shared from now on."""
        if blocks != self._shared_blocks:
            self._shared_blocks, self._profile = blocks, None

    def add(self, course: Course) -> None:
        """Let these sequences run from now on."""
        if course.sums:
            cell = cell_of(course.remaining)
            self._cells[cell] = self._cells.get(cell, 0) + course.sums
            self._profile = None

    def remove(self, course: Course) -> None:
        """Take back what was added."""
        if course.sums:
            cell = cell_of(course.remaining)
            left = self._cells.pop(cell) - course.sums
            if left:
                self._cells[cell] = left
            self._profile = None

    @property
    def profile(self) -> "Profile":
        """How full it gets, as things stand."""
        if self._profile is None:
            self._profile = Profile(self._cells, self._layout, self._shared_blocks)
        return self._profile


class Profile:
    """Blocks held from now until everything has ended, at its worst within each cell of time."""

    def __init__(self, cells: Mapping[int, int], layout: _Layout, shared_blocks: int) -> None:
        self._layout = layout
        self._shared_blocks = shared_blocks
        order = sorted(cells)
        self._ends = list(map(cell_end, order))
        # What is alive until the end of each cell; the first is everything, one more is nothing.
        self._alive = list(accumulate((cells[cell] for cell in reversed(order)), initial=0))
        self._alive.reverse()
        self._final = [(alive & _HEAD) >> _FINAL for alive in self._alive]
        # No more than this is ever held from each cell on: where a peak was found before, one need not look any more.
        self._most = self._final
        if rounding := layout.rounding_blocks:
            self._most = [f + rounding * (alive & _COUNT) for f, alive in zip(self._final, self._alive, strict=True)]
        self._blocks: dict[int, int] = {}

    def _held(self, index: int) -> int:
        """Blocks held while a cell ends, beside those that are shared."""
        blocks = self._blocks.get(index)
        if blocks is None:
            ending = self._final[index] - self._final[index + 1]
            blocks = self._blocks[index] = ending + self._layout.held(self._alive[index + 1], self._ends[index])
        return blocks

    def _most_held(self, indices: range, least: int) -> int:
        """Most blocks held while any of these cells ends, or `least` if that is more."""
        for index in indices:
            if self._most[index] <= least:
                break
            least = max(least, self._held(index))
        return least

    @property
    def peak(self) -> int:
        """Most blocks ever held at once."""
        held = self._most_held(range(len(self._ends)), 0)
        return self._shared_blocks + held if self._ends else 0

    def peak_with(self, course: Course) -> int:
        """The same with one more request that starts now."""
        end = cell_end(cell_of(course.remaining))
        shorter = bisect_left(self._ends, end)
        outlived = shorter + (shorter < len(self._ends) and self._ends[shorter] == end)
        final, more = course.final_blocks, course.shared_blocks
        peak = self._final[shorter] - self._final[outlived] + final
        peak += self._layout.held(self._alive[outlived], course.remaining)
        for index in range(shorter):
            if self._most[index] + final <= peak:
                return self._shared_blocks + peak
            blocks = self._held(index)
            if blocks + final > peak:
                kept = course.kept_blocks if self._ends[index] > course.kept_after else 0
                peak = max(peak, blocks + more + kept + self._layout.held(course.sums, self._ends[index]))
        return self._shared_blocks + more + self._most_held(range(shorter, len(self._ends)), peak - more)

    def tokens_until(self, blocks: float) -> int | None:
        """Tokens each sequence generates until no more than `blocks` are ever held again; None if that is never.

        0 where it never gets fuller than that.
        """
        if blocks < 0:
            return None
        alone = blocks - self._shared_blocks
        for index in reversed(range(len(self._ends))):
            if self._most[index] > alone and self._held(index) > alone:
                return self._ends[index]
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
