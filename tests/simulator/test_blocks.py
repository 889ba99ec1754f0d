import pytest

from kvguard.simulator.blocks import BlockPool, blocks_for, chained_hashes


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


def shared(pool, sequence_id, hashes, blocks=None):
    """A sequence that computes every block it does not find cached, and publishes all."""
    blocks = len(hashes) if blocks is None else blocks
    found = pool.adopt(sequence_id, hashes, blocks)
    if found is not None:
        pool.grow(sequence_id, blocks)
        pool.publish(sequence_id, hashes[found:])
    return found


def test_equal_hashes_mean_equal_beginnings():
    """A block's hash depends on the root and on every token up to its end, and a block that is not full has none."""
    one, two = chained_hashes([1, 2, 3, 4, 5], 2, 0), chained_hashes([9, 2, 3, 4, 5], 2, 0)
    assert len(one) == 2
    assert not set(one) & set(two)
    assert not set(one) & set(chained_hashes([1, 2, 3, 4, 5], 2, 7))
    assert chained_hashes([1, 2, 3, 8], 2, 0) == (one[0], chained_hashes([1, 2, 3, 8], 2, 0)[1])
    assert chained_hashes([1, 2, 3, 8], 2, 0)[1] != one[1]
    assert chained_hashes([1], 2, 0) == ()


def test_a_shared_block_is_used_once():
    """The second sequence takes blocks of its own only for what differs; the last to leave frees what they share."""
    pool = BlockPool(10)
    assert shared(pool, 1, (11, 12, 13)) == 0
    assert shared(pool, 2, (11, 12, 99)) == 2
    assert (pool.held(1), pool.held(2), pool.used) == (3, 3, 4)
    assert (pool.release(1), pool.used) == (3, 3)
    assert (pool.release(2), pool.used) == (3, 0)


def test_what_is_cached_counts_as_free_and_is_found_again():
    """Blocks nobody holds are free, and a later sequence takes them from there."""
    pool = BlockPool(4)
    shared(pool, 1, (11, 12, 13))
    pool.release(1)
    assert pool.free == 3
    assert shared(pool, 2, (11, 12)) == 2
    assert pool.free == 1


def test_blocks_without_a_hash_are_taken_first():
    """Nothing cached is lost while there are others."""
    pool = BlockPool(5)
    shared(pool, 1, (11,), blocks=3)
    pool.release(1)
    assert pool.grow(2, 3)
    assert shared(pool, 3, (11,)) == 1


@pytest.mark.parametrize(
    ("taken", "cached"), [(0, [11, 12, 21, 22]), (1, [11, 21, 22]), (2, [11, 21]), (3, [11]), (4, [])]
)
def test_the_least_recently_used_is_lost_first_and_the_tail_before_the_head(taken, cached):
    """Using a block again keeps it, and of one sequence the beginning stays longest."""
    pool = BlockPool(5)
    for sequence_id, hashes in ((1, (11, 12)), (2, (21, 22)), (3, (11,))):
        shared(pool, sequence_id, hashes)
        pool.release(sequence_id)
    pool.grow(9, taken)
    assert [name for name in (11, 12, 21, 22) if pool.adopt(name, (name,), 0)] == cached


def test_a_run_ends_at_the_first_block_that_is_gone():
    """What is cached behind a gap is not found."""
    pool = BlockPool(4)
    shared(pool, 1, (11, 12, 13))
    pool.release(1)
    assert pool.adopt(2, (99, 12, 13), 3) == 0
    assert pool.held(2) == 0


@pytest.mark.parametrize(("blocks", "found"), [(3, 2), (4, 2), (5, None)])
def test_adopting_needs_the_rest_to_be_free(blocks, found):
    """Cached blocks nobody holds were free themselves, so they do not make room for the rest."""
    pool = BlockPool(6)
    shared(pool, 1, (11, 12))
    pool.release(1)
    pool.grow(2, 1)
    assert pool.adopt(3, (11, 12), blocks) == found
    assert (pool.held(3), pool.used) == ((2, 3) if found else (0, 1))


def test_the_same_block_may_be_there_twice():
    """Two that computed it side by side hold one each, and it is found until both are lost."""
    pool = BlockPool(4)
    for sequence_id in (1, 2):
        pool.grow(sequence_id, 1)
        pool.publish(sequence_id, (11,))
    assert pool.used == 2
    pool.release(1)
    pool.release(2)
    pool.grow(3, 2)
    assert shared(pool, 4, (11,)) == 1
    pool.release(4)
    pool.grow(3, 3)
    assert pool.adopt(5, (11,), 0) == 0
