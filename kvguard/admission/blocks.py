"""How many of the engine's blocks a sequence holds. Arithmetic only; which groups a model has is the engine's to say.

An engine keeps layers that behave alike in one group with one block table, and all groups draw on one pool. In the step
that computes tokens `d` to `d + n`, vLLM holds per group (v1/core/single_type_kv_cache_manager.py):

    full attention    ceil((d+n) / b)
    sliding window W  ceil((d+n) / b) - max(0, d-W+1) // b
    chunks of C       ceil((d+n) / b) - ((d//C) * C) // b
    constant state    1, and with prefix caching one more while a prefill spans several steps

A decode step computes one token (the settled state), a prefill up to `step_tokens`: a windowed group then holds several
times its settled share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, gcd, lcm
from typing import Final

_FEW_STEPS = 8  # looked at one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """`count` groups of layers alike, `block_size` tokens a block; full attention unless windowed or chunked."""

    block_size: int
    count: int = 1
    sliding_window: int | None = None
    attention_chunk_size: int | None = None

    @property
    def windowed(self) -> bool:
        """Whether old tokens are given up."""
        return self.sliding_window is not None or self.attention_chunk_size is not None

    def most_blocks(self, lookahead_tokens: int = 0) -> int | None:
        """Most blocks a settled sequence ever holds in one such group; None grows without end."""
        size, chunk = self.block_size, self.attention_chunk_size
        kept = self.sliding_window if chunk is None else chunk
        if kept is None:
            return None
        if chunk is not None and chunk % size == 0:  # every chunk starts with a block of its own
            return blocks_for(chunk + lookahead_tokens, size)
        return (kept + lookahead_tokens + 2 * size - 2) // size

    def held(self, computed: int, scheduled: int) -> int:
        """Blocks in the step that computes `scheduled` tokens after `computed`."""
        return self.count * (blocks_for(computed + scheduled, self.block_size) - self._given_up(computed))

    def _given_up(self, computed: int) -> int:
        if self.sliding_window is not None:
            return max(0, computed - self.sliding_window + 1) // self.block_size
        if self.attention_chunk_size is not None:
            return computed // self.attention_chunk_size * self.attention_chunk_size // self.block_size
        return 0

    def reached(self, tokens: int, lookahead_tokens: int = 0) -> int:
        """Most blocks held, settled, by the time a sequence has `tokens` tokens; never falls as it grows."""
        blocks, most = blocks_for(tokens + lookahead_tokens, self.block_size), self.most_blocks(lookahead_tokens)
        return self.count * (blocks if most is None else min(blocks, most))


def blocks_for(tokens: int, block_size: int) -> int:
    """Whole blocks that hold `tokens` of one sequence."""
    return -(-tokens // block_size)


@dataclass(frozen=True, slots=True)
class Surge:
    """Prefills under way: blocks they would hold beyond their settled share if each had every step to itself."""

    blocks: int = 0
    sequences: int = 0

    def __add__(self, other: "Surge") -> "Surge":
        return Surge(self.blocks + other.blocks, self.sequences + other.sequences)

    def __sub__(self, other: "Surge") -> "Surge":
        return Surge(self.blocks - other.blocks, self.sequences - other.sequences)

    def times(self, copies: int) -> "Surge":
        """The same for so many sequences alike."""
        return Surge(self.blocks * copies, self.sequences * copies)

    def shared(self, rule: "BlockRule") -> int:
        """Blocks they hold together: one step's tokens are shared among them."""
        return min(self.blocks, rule.surge_limit(self.sequences)) if self.blocks else 0


NO_SURGE: Final = Surge()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How much room an engine reserves for an answer before it begins, where it does so instead of block by block.

    Token counts are those of one sequence.
    Of an answer at most `piece_tokens` are reserved at once, at most `open_piece_tokens` where the client named no cap
    (None: all of it); a longer one queues again, with what it has so far as part of its prompt, and for as much again.
    `speculated_tokens` come on top. Under a `sliding_window` no more is reserved than the window, or than the prompt
    where `window_spares_prompt`. `padded` rounds prompt and output up to whole blocks each.
    """

    piece_tokens: int | None = None
    open_piece_tokens: int | None = None
    speculated_tokens: int = 0
    sliding_window: int | None = None
    window_spares_prompt: bool = False
    padded: bool = False

    def blocks(self, prompt_tokens: int, cap: int, *, named: bool, produced: int, block_size: int) -> int:
        """Blocks reserved while the answer has `produced` tokens of at most `cap`; `named` is a cap the client set."""
        cap = max(cap, 1)
        piece = self.piece_tokens if named else self.open_piece_tokens
        if piece is not None:
            prompt_tokens += max(produced - 1, 0) // piece * piece
            cap = min(cap, piece)
        if self.padded:
            # As if the last token got KV too.
            output = self._within_window(prompt_tokens, prompt_tokens + cap) - prompt_tokens
            return sum(blocks_for(tokens, block_size) for tokens in (prompt_tokens, output, self.speculated_tokens))
        tokens = self._within_window(prompt_tokens, prompt_tokens + cap - 1 + self.speculated_tokens)
        return blocks_for(tokens, block_size)

    def _within_window(self, prompt_tokens: int, tokens: int) -> int:
        if self.sliding_window is None:
            return tokens
        spared = prompt_tokens if self.window_spares_prompt else 0
        return min(tokens, max(self.sliding_window, spared))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRule:
    """What one sequence holds over all groups of its model.

    `state_blocks` are held whatever the length, `spanning_state_blocks` besides while a prefill takes more than one
    step. `step_tokens` is what one step may compute over all requests (`max_num_batched_tokens`); `lookahead_tokens`
    are slots kept for speculated tokens. An engine that reserves `ahead` holds room for an answer from its beginning.
    """

    groups: tuple[BlockGroup, ...]
    state_blocks: int = 0
    spanning_state_blocks: int = 0
    step_tokens: int = 8192
    lookahead_tokens: int = 0
    ahead: Ahead | None = None

    @classmethod
    def plain(cls, block_size: int) -> "BlockRule":
        """Full attention in every layer: `ceil(tokens / block_size)`."""
        return cls(groups=(BlockGroup(block_size=block_size),))

    @property
    def block_size(self) -> int:
        """Tokens of a block where a sequence grows for ever, else the largest there is; 1 without any attention."""
        growing = [group.block_size for group in self.groups if not group.windowed]
        return max(growing or [group.block_size for group in self.groups], default=1)

    @property
    def tokens_per_block(self) -> float:
        """Tokens a long sequence grows by for each block it adds over all groups."""
        growing = [group for group in self.groups if not group.windowed] or list(self.groups)
        rate = sum(group.count / group.block_size for group in growing)
        return 1 / rate if rate else 1.0

    @property
    def surges(self) -> bool:
        """Whether a prefill may hold more than the sequence does afterwards."""
        return bool(self.spanning_state_blocks) or any(group.windowed for group in self.groups)

    @property
    def shares_prefixes(self) -> bool:
        """Whether a sequence whose first blocks are another's holds exactly so many fewer: one table, nothing given up.

        Windows and states have rules of their own for what may be taken from a cache.
        """
        one = self.groups[0] if len(self.groups) == 1 and self.ahead is None and not self.state_blocks else None
        return one is not None and one.count == 1 and not one.windowed

    def settled_blocks(self, tokens: int) -> int:
        """Blocks in the decode step after which a sequence has `tokens` tokens with KV: exactly what vLLM holds."""
        return self.held_blocks(max(0, tokens - 1), min(1, tokens)) if tokens else 0

    def reached_blocks(self, tokens: int) -> int:
        """Most blocks held, settled, up to `tokens` tokens; at most one more a windowed group than right now."""
        if not tokens:
            return 0
        return self.state_blocks + sum(group.reached(tokens, self.lookahead_tokens) for group in self.groups)

    def tokens_to_next_block(self, tokens: int) -> int:
        """How many tokens more begin another block in some group; at least 1."""
        last = tokens + self.lookahead_tokens - 1
        return min((group.block_size - last % group.block_size for group in self.groups), default=1)

    def longest_sequence(self, blocks: int) -> int | None:
        """Tokens one sequence alone can grow to in so many blocks; None where it holds no more however long it gets."""
        if all(group.windowed for group in self.groups):
            return None
        low, high = 0, blocks * self.block_size + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.reached_blocks(middle) <= blocks else (low, middle)
        return low

    def prefill_blocks(self, prompt_tokens: int) -> int:
        """Most blocks held in any step of a prefill that has every step to itself."""
        if not prompt_tokens:
            return 0
        spans = self.spanning_state_blocks if prompt_tokens > self.step_tokens else 0
        return spans + max(self.held_blocks(computed, scheduled) for computed, scheduled in self._steps(prompt_tokens))

    def surge(self, prompt_tokens: int) -> "Surge":
        """What a prefill holds at most beyond what is reached afterwards."""
        if not self.surges:
            return NO_SURGE
        blocks = max(0, self.prefill_blocks(prompt_tokens) - self.reached_blocks(prompt_tokens))
        return Surge(blocks, 1) if blocks else NO_SURGE

    def surge_limit(self, sequences: int) -> int:
        """Most that `sequences` prefills at once can surge together: they share the tokens of a step."""
        windowed = [group for group in self.groups if group.windowed]
        shared = sum(group.count * (blocks_for(self.step_tokens, group.block_size) + sequences) for group in windowed)
        # A step leaves one prefill unfinished, and the next begins with it.
        return shared + min(sequences, 2) * self.spanning_state_blocks

    def held_blocks(self, computed: int, scheduled: int) -> int:
        """Blocks in the step that computes `scheduled` tokens after `computed`."""
        ahead = scheduled + self.lookahead_tokens
        return self.state_blocks + sum(group.held(computed, ahead) for group in self.groups)

    def _steps(self, prompt_tokens: int) -> Iterator[tuple[int, int]]:
        """Steps of a prefill, among them one in which it holds the most; few of them, however long the prompt.

        Whole steps fall into spans, within which the same windows give tokens up. There, blocks repeat every
        `_period` steps, but for growth; and whatever falls back by more than they vary never comes up again. So the
        last steps of each span decide.
        """
        whole, rest = divmod(prompt_tokens, self.step_tokens)
        if rest:
            yield whole * self.step_tokens, rest
        if whole <= _FEW_STEPS:
            last, ends = whole, [whole]
        else:
            last, ends = self._deciding_steps, sorted({whole, *(end for end in self._span_ends if end < whole)})
        for start, end in pairwise([0, *ends]):
            for step in range(max(start, end - last), end):
                yield step * self.step_tokens, self.step_tokens

    @property
    def _span_ends(self) -> list[int]:
        """The first step before which each window is full."""
        windows = [group.sliding_window for group in self.groups if group.sliding_window is not None]
        return [end for end in (blocks_for(window - 1, self.step_tokens) for window in windows) if end]

    @property
    def _deciding_steps(self) -> int:
        """How many of the last steps of a span may be the one that holds the most."""
        period = lcm(*(lcm(group.block_size, group.attention_chunk_size or 1) for group in self.groups))
        period //= gcd(period, self.step_tokens)
        growth = self.step_tokens * sum(group.count / group.block_size for group in self.groups if not group.windowed)
        if not growth:
            return period
        # Rounding at both ends, and how far a chunk is filled.
        varies = sum(group.count * (2 + (group.attention_chunk_size or 0) / group.block_size) for group in self.groups)
        return min(period, ceil(varies / growth) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLayout:
    """Blocks of a model: what a sequence holds, and what one block costs on one GPU; None where that is not known."""

    rule: BlockRule
    block_bytes: int | None = None

    @classmethod
    def plain(cls, block_size: int) -> "PoolLayout":
        """A model of which nothing is known: its attention counts as full in every layer."""
        return cls(rule=BlockRule.plain(block_size))
