"""The block pool of one engine: how many KV blocks each sequence holds, and which of them others may share.

As in vLLM's V1 pool: a full block may be published under the hash of its tokens and of all before them. Others then
hold it with its owner, it counts as used once, and when the last of them lets go it stays cached among the free ones
until it is the least recently used and nothing else is free. Blocks without a hash are only counted, and taken first.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile


def blocks_for(tokens: int, block_size: int) -> int:
    """Whole blocks that `tokens` tokens with KV occupy."""
    return -(-tokens // block_size)


def chained_hashes(token_ids: Sequence[int], block_size: int, root: int) -> tuple[int, ...]:
    """The hash of every full block: equal only where the root and all tokens up to the block's end are."""
    hashes, parent = [], root
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = hash((parent, *token_ids[end - block_size : end]))
        hashes.append(parent)
    return tuple(hashes)


@dataclass(slots=True, eq=False)
class _Block:
    """A block with a hash, and how many sequences hold it."""

    name: int
    holders: int = 1


@dataclass(slots=True)
class _Holding:
    """What a sequence holds: its leading blocks that have a hash, in order, and how many others."""

    published: list[_Block] = field(default_factory=list)
    plain: int = 0

    @property
    def blocks(self) -> int:
        return len(self.published) + self.plain


class BlockPool:
    """Free and held blocks. One block of the total is the engine's null block and is never handed out."""

    def __init__(self, num_gpu_blocks: int) -> None:
        if num_gpu_blocks < 2:
            raise ValueError(f"num_gpu_blocks must be at least 2 (one is the null block), got {num_gpu_blocks}")
        self._usable = num_gpu_blocks - 1
        self._free_plain = self._usable
        self._idle: OrderedDict[_Block, None] = OrderedDict()  # published and held by nobody, the oldest first
        self._published: dict[int, dict[_Block, None]] = {}  # two sequences may have computed the same block
        self._held: dict[int, _Holding] = {}

    @property
    def usable(self) -> int:
        return self._usable

    @property
    def free(self) -> int:
        return self._free_plain + len(self._idle)

    @property
    def used(self) -> int:
        return self._usable - self.free

    def held(self, sequence_id: int) -> int:
        holding = self._held.get(sequence_id)
        return holding.blocks if holding else 0

    def adopt(self, sequence_id: int, hashes: Iterable[int], blocks: int) -> int | None:
        """Let a sequence that holds nothing hold the longest run of cached blocks under the leading `hashes`.

        Says how long the run is; None, and nothing changes, when too few are free for `blocks` in all.
        """
        found = [next(iter(self._published[name])) for name in takewhile(self._published.__contains__, hashes)]
        woken = sum(not block.holders for block in found)
        if blocks - len(found) > self.free - woken:
            return None
        for block in found:
            self._idle.pop(block, None)
            block.holders += 1
        if found:
            self._held[sequence_id] = _Holding(published=found)
        return len(found)

    def grow(self, sequence_id: int, blocks: int) -> bool:
        """Let the sequence hold at least `blocks` blocks in all; False, and nothing changes, when too few are free."""
        missing = max(0, blocks - self.held(sequence_id))
        if missing > self.free:
            return False
        if missing:
            self._take(missing)
            self._held.setdefault(sequence_id, _Holding()).plain += missing
        return True

    def publish(self, sequence_id: int, hashes: Sequence[int]) -> None:
        """The sequence's next blocks without a hash are full and have these."""
        holding = self._held[sequence_id]
        for name in hashes:
            block = _Block(name)
            holding.plain -= 1
            holding.published.append(block)
            self._published.setdefault(name, {})[block] = None

    def release(self, sequence_id: int) -> int:
        """Let go of everything the sequence holds and say how much that was; a second call finds nothing.

        The tail goes first, so that of what nobody else holds the head stays cached longest.
        """
        holding = self._held.pop(sequence_id, _Holding())
        self._free_plain += holding.plain
        for block in reversed(holding.published):
            block.holders -= 1
            if not block.holders:
                self._idle[block] = None
        return holding.blocks

    def _take(self, blocks: int) -> None:
        """Take that many free blocks; what was cached in them is lost."""
        plain = min(blocks, self._free_plain)
        self._free_plain -= plain
        for _ in range(blocks - plain):
            block, _ = self._idle.popitem(last=False)
            same = self._published[block.name]
            del same[block]
            if not same:
                del self._published[block.name]
