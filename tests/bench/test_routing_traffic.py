"""What many engines are asked: schedules, conversations and what prompts have in common."""

from itertools import islice
from random import Random

import pytest

from bench.routing.traffic import BLOCK_SIZE, CHAT, ENGINE, RAG, REASONING, TRAFFIC, calmed, schedule, turns


def asked(traffic, seed="1", **fields):
    return schedule(traffic, **{"engines": 4, "rate": 20.0, "seconds": 15.0, "seed": seed, **fields})


@pytest.mark.parametrize("name", TRAFFIC)
def test_the_same_seed_asks_the_same(name):
    """Requests, times and hashes are a matter of the seed alone; they come in order of time and number."""
    first, again, other = asked(TRAFFIC[name]), asked(TRAFFIC[name]), asked(TRAFFIC[name], seed="2")
    assert first == again != other
    assert [turn.number for turn in first] == list(range(len(first)))
    assert [turn.at for turn in first] == sorted(turn.at for turn in first)


@pytest.mark.parametrize("name", TRAFFIC)
def test_as_many_come_as_were_asked_for_from_the_first_second_on(name):
    """Conversations are under way when it begins."""
    traffic = TRAFFIC[name]
    every = asked(traffic, rate=80.0, seconds=30.0)
    assert len(every) / 30.0 == pytest.approx(80.0, rel=0.1)
    assert sum(turn.at < 10.0 for turn in every) / 10.0 == pytest.approx(80.0, rel=0.2)


@pytest.mark.parametrize("name", TRAFFIC)
def test_every_request_fits_the_engine(name):
    """No answer is longer than its cap, and prompt and cap are within the context."""
    for turn in asked(TRAFFIC[name]):
        assert turn.length <= turn.cap
        assert turn.prompt_tokens + turn.cap <= ENGINE.max_model_len
        assert len(turn.prefix) == (turn.prompt_tokens + turn.length) // BLOCK_SIZE


def test_a_turn_begins_with_all_that_was_said_before():
    """Its blocks begin with those of the turn it follows, answer included, and it comes later."""
    every = asked(CHAT)
    later = [turn for turn in every if turn.follows is not None]
    assert len(later) > len(every) / 3
    for turn in later:
        before = every[turn.follows]
        assert turn.prefix[: len(before.prefix)] == before.prefix
        assert turn.prompt_tokens > before.prompt_tokens + before.length
        assert turn.at > before.at + turn.think_seconds > before.at


def test_a_turn_is_followed_by_one_at_most():
    """So a conversation never splits."""
    follows = [turn.follows for turn in asked(CHAT) if turn.follows is not None]
    assert len(follows) == len(set(follows))


def test_documents_are_shared_by_popularity():
    """As many documents as there are for so many engines, the most popular far ahead; questions are everybody's own."""
    every = list(islice(turns(RAG, engines=4, rate=20.0, seed="1"), 2000))
    asked_for = {}
    for turn in every:
        asked_for[turn.prefix[0]] = asked_for.get(turn.prefix[0], 0) + 1
    often = sorted(asked_for.values(), reverse=True)
    assert len(often) == 40
    assert often[0] > 1.5 * often[1] > 3 * often[10]
    assert len({turn.prefix[-1] for turn in every}) > 1900


def test_reasoning_has_nothing_in_common():
    """No block comes twice, and nobody comes back."""
    every = asked(REASONING)
    blocks = [block for turn in every for block in turn.prefix]
    assert len(blocks) == len(set(blocks))
    assert all(turn.follows is None for turn in every)


@pytest.mark.parametrize(("load", "early"), [(0.8, 1.0), (1.0, 1.0), (4.0, 0.25)])
def test_it_is_calm_at_first(load, early):
    """Until then no more comes than can be finished; of what comes later nothing is left out."""
    every = asked(REASONING, rate=100.0)
    kept = calmed(every, 6.0, load, Random(1))
    assert sum(turn.at < 6.0 for turn in kept) == pytest.approx(early * sum(turn.at < 6.0 for turn in every), rel=0.2)
    assert [turn for turn in kept if turn.at >= 6.0] == [turn for turn in every if turn.at >= 6.0]
