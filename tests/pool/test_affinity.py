"""Where prompts go that begin alike."""

import random

from kvguard.pool.affinity import Affinity, Trail, session_key

NAMES = [f"b{number}" for number in range(16)]


def ring(*names: str) -> Affinity:
    made = Affinity()
    made.among(names)
    return made


def session_trail(session: bytes, parts: tuple[int, ...] = ()) -> Trail:
    return Trail(session_key(session), parts)


def keys(count: int = 2000) -> list[int]:
    rng = random.Random(1)
    return [rng.getrandbits(64) for _ in range(count)]


def test_the_longest_beginning_that_went_somewhere_decides() -> None:
    """Whatever follows it; a later request with the same beginning leads elsewhere from then on."""
    affinity = ring(*NAMES)
    affinity.sent(Trail(parts=(1, 2)), "b3")
    affinity.sent(Trail(parts=(1, 2, 3)), "b7")
    affinity.sent(Trail(parts=(1, 9)), "b5")
    went = [affinity.preferred(Trail(parts=parts)) for parts in ((1, 2, 3, 4), (1, 2, 8), (1, 8), (1, 9))]
    assert went == ["b7", "b7", "b5", "b5"]


def test_a_backend_that_is_gone_is_not_where_it_went() -> None:
    """A shorter beginning that went to one that is there counts instead."""
    affinity = ring(*NAMES)
    affinity.sent(Trail(parts=(1,)), "b3")
    affinity.sent(Trail(parts=(2,)), "b4")
    affinity.among(["b3", "b5"])
    assert affinity.preferred(Trail(parts=(1, 2))) == "b3"


def test_what_never_went_anywhere_goes_where_any_other_proxy_would_send_it() -> None:
    """The order in which backends were found makes no difference; only the first part counts, whatever follows."""
    one, other = ring(*NAMES), ring(*reversed(NAMES))
    for key in keys(100):
        assert one.preferred(Trail(parts=(key,))) == other.preferred(Trail(parts=(key, 7)))


def test_a_backend_more_moves_few_prompts() -> None:
    """Those that move go to the new one, and every backend gets about as many."""
    before, after = ring(*NAMES), ring(*NAMES, "new")
    first = [(before.preferred(Trail(parts=(key,))), after.preferred(Trail(parts=(key,)))) for key in keys()]
    moved = [new for old, new in first if old != new]
    assert set(moved) == {"new"}
    assert len(moved) < 2000 / 17 * 2
    counts = [sum(old == name for old, _ in first) for name in NAMES]
    assert max(counts) < 2 * 2000 / 16
    assert min(counts) > 0.4 * 2000 / 16


def test_a_session_comes_before_the_prompt() -> None:
    """Its requests stay together though their prompts differ; others with the same prompt go where that went."""
    affinity, parts = ring(*NAMES), (1, 2)
    affinity.sent(session_trail(b"a", parts), "b1")
    affinity.sent(session_trail(b"b", parts), "b2")
    assert affinity.preferred(session_trail(b"a", (5,))) == "b1"
    assert affinity.preferred(session_trail(b"c", parts)) == "b2"
    assert session_trail(b"a").start == session_trail(b"a", (9,)).start != session_trail(b"b").start


def test_nothing_to_go_by_prefers_nobody() -> None:
    """Neither does a pool without backends."""
    assert ring(*NAMES).preferred(Trail()) is None
    assert ring().preferred(Trail(parts=(1,))) is None
    assert ring("only").preferred(Trail(parts=(1,))) == "only"


def test_the_least_recent_is_forgotten_first() -> None:
    """What is remembered is bounded, and what went again is recent."""
    affinity = Affinity(remembered=2)
    affinity.among("abc")
    for part, name in ((1, "a"), (2, "b"), (1, "a"), (3, "c")):
        affinity.sent(Trail(parts=(part,)), name)
    new = ring("a", "b", "c").preferred(Trail(parts=(2,)))
    assert [affinity.preferred(Trail(parts=(part,))) for part in (1, 2, 3)] == ["a", new, "c"]
    assert new != "b"
