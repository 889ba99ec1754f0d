"""The block pool of one engine: how many KV blocks each sequence holds. Counts only; no block has an identity."""


def blocks_for(tokens: int, block_size: int) -> int:
    """Whole blocks that `tokens` tokens with KV occupy."""
    return -(-tokens // block_size)


class BlockPool:
    """Free and held blocks. One block of the total is the engine's null block and is never handed out."""

    def __init__(self, num_gpu_blocks: int) -> None:
        if num_gpu_blocks < 2:
            raise ValueError(f"num_gpu_blocks must be at least 2 (one is the null block), got {num_gpu_blocks}")
        self._usable = num_gpu_blocks - 1
        self._free = self._usable
        self._held: dict[int, int] = {}

    @property
    def usable(self) -> int:
        return self._usable

    @property
    def free(self) -> int:
        return self._free

    @property
    def used(self) -> int:
        return self._usable - self._free

    def held(self, sequence_id: int) -> int:
        return self._held.get(sequence_id, 0)

    def grow(self, sequence_id: int, blocks: int) -> bool:
        """Let the sequence hold at least `blocks` blocks in all; False, and nothing changes, when too few are free."""
        missing = max(0, blocks - self.held(sequence_id))
        if missing > self._free:
            return False
        if missing:
            self._free -= missing
            self._held[sequence_id] = blocks
        return True

    def release(self, sequence_id: int) -> int:
        """Free everything the sequence holds and say how much that was; a second call frees nothing."""
        blocks = self._held.pop(sequence_id, 0)
        self._free += blocks
        return blocks
