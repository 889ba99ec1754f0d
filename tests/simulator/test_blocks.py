import pytest

from kvguard.simulator.blocks import BlockPool, blocks_for


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_round_up(tokens, blocks):
    """A token past a full block takes a whole new block."""
    assert blocks_for(tokens, 16) == blocks


def test_the_null_block_is_never_handed_out():
    """A pool of n blocks lends n - 1."""
    pool = BlockPool(4)
    assert (pool.usable, pool.free, pool.used) == (3, 3, 0)
    assert not pool.grow(1, 4)
    assert pool.grow(1, 3)
    assert (pool.free, pool.used) == (0, 3)


def test_a_refused_growth_changes_nothing():
    """A sequence that asks for too much keeps exactly what it had."""
    pool = BlockPool(4)
    pool.grow(1, 2)
    assert not pool.grow(2, 2)
    assert (pool.held(1), pool.held(2), pool.free) == (2, 0, 1)


def test_growing_to_what_is_held_takes_nothing():
    """Asking again for the same or a smaller number is granted without a block, even from a full pool."""
    pool = BlockPool(3)
    pool.grow(1, 2)
    assert pool.grow(1, 2)
    assert pool.grow(1, 1)
    assert (pool.held(1), pool.free) == (2, 0)


def test_release_frees_once():
    """The second release of a sequence frees nothing, so free never exceeds usable."""
    pool = BlockPool(4)
    pool.grow(1, 2)
    assert (pool.release(1), pool.release(1), pool.release(7)) == (2, 0, 0)
    assert (pool.free, pool.held(1)) == (3, 0)


def test_a_pool_needs_a_usable_block():
    """A pool of the null block alone is refused."""
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)
