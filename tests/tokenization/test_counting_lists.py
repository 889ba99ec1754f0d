"""Prompts of one request that are put together of several: how they are counted, how soon, and what they come to."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvguard.protocols import chat_batch, generate, openai_chat, pooling, scoring
from kvguard.protocols.fields import Fields
from kvguard.protocols.prompts import ChatPrompt, OpenEndedPrompt, PromptList, TextPrompts, TokenPrompts
from kvguard.protocols.request import InferenceRequest
from kvguard.tokenization.counter import (
    MAX_QUESTIONS,
    MAX_RENDERED,
    CountFailed,
    CountSource,
    ExactCounter,
    PromptCounter,
    TokenCount,
    paired,
    shared,
    side_by_side,
)
from kvguard.tokenization.learned import LearnedPolicy, LearnedRatios

pytestmark = pytest.mark.anyio

IDS, LOCAL, ENGINE, LEARNED = CountSource


class Letters:
    """Counts letters, and three more for a conversation; notes how many it is asked about at once."""

    def __init__(self, source: CountSource = ENGINE, *, fails: bool = False) -> None:
        self.source = source
        self.fails = fails
        self.asked: list[int] = []

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        self.asked.append(len(texts))
        if self.fails:
            raise CountFailed("no")
        return tuple(map(len, texts))

    async def count_chats(self, chats: tuple[Fields, ...], model: Fields) -> tuple[int, ...]:
        texts = [json.loads(bytes(chat["messages"]))[0]["content"] for chat in chats]
        return tuple(3 + length for length in await self.count_text(tuple(map(str, texts)), model))


def counting(*counters: Letters, limit: int = 100_000) -> PromptCounter:
    exact: Sequence[ExactCounter] = [ExactCounter(counter=each, prompt_limit_bytes=limit) for each in counters]
    return PromptCounter(lambda _: exact, LearnedRatios(LearnedPolicy()))


def batch(*texts: str) -> InferenceRequest:
    messages = [[{"role": "user", "content": text}] for text in texts]
    return chat_batch.parse(json.dumps({"messages": messages}).encode())


def embeddings(*texts: str, **fields: object) -> InferenceRequest:
    return pooling.parse_embeddings(json.dumps({"input": texts, **fields}).encode())


def rerank(query: object, *documents: object) -> InferenceRequest:
    return pooling.parse_rerank(json.dumps({"query": query, "documents": documents}).encode())


# Putting counts together


@pytest.mark.parametrize(
    ("counts", "together"),
    [
        ([TokenCount((1, 2), IDS)], TokenCount((1, 2), IDS)),
        ([TokenCount((1,), IDS), TokenCount((2,), ENGINE)], TokenCount((1, 2), ENGINE)),
        ([TokenCount((1,), LEARNED, (5,)), TokenCount((2, 3), LOCAL)], TokenCount((1, 2, 3), LEARNED, (5, 0, 0))),
        ([TokenCount((1,), LEARNED, (0,)), TokenCount((2,), ENGINE)], TokenCount((1, 2), LEARNED)),
    ],
)
def test_side_by_side(counts: list[TokenCount], together: TokenCount) -> None:
    """In their order, as certain as the least certain of them; slack only where there is some."""
    assert side_by_side(counts) == together


@pytest.mark.parametrize(
    ("query", "items", "together"),
    [
        (TokenCount((5,), IDS), TokenCount((1, 2), IDS), TokenCount((6, 7), IDS)),
        (TokenCount((5,), LEARNED, (3,)), TokenCount((1, 2), ENGINE), TokenCount((6, 7), LEARNED, (3, 3))),
        (TokenCount((5,), LOCAL), TokenCount((1, 2), LEARNED, (1, 0)), TokenCount((6, 7), LEARNED, (1, 0))),
        (TokenCount((5,), LEARNED, (3,)), TokenCount((1,), LEARNED, (1,)), TokenCount((6,), LEARNED, (4,))),
        (TokenCount((5,), LEARNED, (0,)), TokenCount((1,), LEARNED, (0,)), TokenCount((6,), LEARNED)),
    ],
)
def test_shared(query: TokenCount, items: TokenCount, together: TokenCount) -> None:
    """The query is in each, with what it may be too low by."""
    assert shared(query, items) == together


@pytest.mark.parametrize(
    ("queries", "documents", "together"),
    [
        (TokenCount((5,), LOCAL), TokenCount((7,), LOCAL), TokenCount((5, 7), LOCAL, (5, 0))),
        (TokenCount((5,), IDS), TokenCount((7, 8), ENGINE), TokenCount((5, 5, 7, 8), ENGINE, (5, 0, 0, 0))),
        (
            TokenCount((5, 6), ENGINE),
            TokenCount((7, 8), ENGINE),
            TokenCount((5, 6, 7, 8), ENGINE, (5, 6, 0, 0)),
        ),
        (
            TokenCount((5,), LEARNED, (2,)),
            TokenCount((7, 8), LEARNED, (3, 0)),
            TokenCount((5, 5, 7, 8), LEARNED, (9, 2, 3, 0)),
        ),
    ],
)
def test_paired(queries: TokenCount, documents: TokenCount, together: TokenCount) -> None:
    """Query and document of each pair, and room for every query once more."""
    assert paired(queries, documents) == together


# Asking


@pytest.mark.parametrize("source", [LOCAL, ENGINE])
async def test_a_list_is_asked_about_at_once(source: CountSource) -> None:
    """All conversations in one question, all texts in another; ids in none."""
    counter = Letters(source)
    assert await counting(counter).count(batch("a", "bb")) == TokenCount((4, 5), source)
    assert counter.asked == [2]
    mixed = replace(batch("a"), prompt=PromptList((TokenPrompts((9, 8)), *batch("a", "bb").prompt.prompts)))  # type: ignore[union-attr]
    mixed = replace(mixed, prompt=PromptList((*mixed.prompt.prompts, TextPrompts(("ccc", "d")))))  # type: ignore[union-attr]
    assert await counting(counter).count(mixed) == TokenCount((9, 8, 4, 5, 3, 1), source)
    assert counter.asked == [2, 2, 2]


async def test_ids_alone_need_no_counter() -> None:
    """Whoever would count."""
    counter = Letters()
    ids = replace(batch("a"), prompt=PromptList((TokenPrompts((1,)), TokenPrompts((2, 3)))))
    assert await counting(counter).count(ids) == TokenCount((1, 2, 3), IDS)
    scored = scoring.parse(b'{"query":[1,2],"items":[[1],[2,3]]}')
    assert await counting(counter).count(scored) == TokenCount((3, 4), IDS)
    assert await counting(counter).count_again(ids) is None
    assert counter.asked == []


async def test_query_and_items_are_asked_about_together() -> None:
    """One question for a text each, and none for what is ids."""
    counter = Letters()
    texts = scoring.parse(b'{"query":"qq","items":["a","bbb"]}')
    assert await counting(counter).count(texts) == TokenCount((3, 5), ENGINE)
    half = scoring.parse(b'{"query":[1,2],"items":["a","bbb"]}')
    assert await counting(counter).count(half) == TokenCount((3, 5), ENGINE)
    assert counter.asked == [3, 2]


async def test_pairs_of_text_and_of_parts() -> None:
    """An object is counted as a conversation, and its picture is allowed for."""
    picture = {"type": "image_url", "image_url": {"url": "http://x"}}
    count = await counting(Letters()).count(rerank("qq", "ddd"))
    assert count == TokenCount((2, 3), ENGINE, (2, 0))
    count = await counting(Letters()).count(rerank("qq", "ddd", {"content": [picture]}))
    assert count.prompts[:3] == (2, 2, 3)
    assert count.prompts[3] > 1024
    assert count.slack[3] > 0
    assert count.slack[:3] == (2, 0, 0)


async def test_media_beside_ids_are_allowed_for() -> None:
    """Ids are exact; what comes on top of them is known between bounds."""
    body = {"token_ids": [1] * 10, "sampling_params": {}, "model": "gemma-3-4b"}
    part = {"type": "image_url", "url": "http://x"}
    request = generate.parse(json.dumps({**body, "content_parts": [part]}).encode())
    count = await counting().count(request)
    assert (count.prompts, count.source) == ((10 + 260,), IDS)
    assert await counting().count(generate.parse(json.dumps(body).encode())) == TokenCount((10,), IDS)


async def test_history_that_only_the_engine_has_is_counted_as_far_as_it_is_known() -> None:
    """The rest is the request's own to allow for."""
    request = openai_chat.parse(b'{"messages":[{"role":"user","content":"abc"}]}')
    assert isinstance(request.prompt, ChatPrompt)
    open_ended = replace(request, prompt=OpenEndedPrompt(request.prompt))
    count = await counting(Letters()).count(open_ended)
    assert count == TokenCount((6,), ENGINE)
    demand = open_ended.demand(count.prompts, context_tokens=100, assumed_output_tokens=50)
    assert (demand.prompts, demand.prompt_tokens, demand.estimated) == ((100,), 6, True)
    unknown = open_ended.demand(count.prompts, context_tokens=None, assumed_output_tokens=50)
    assert (unknown.prompts, unknown.estimated) == ((6,), True)


# How soon


@pytest.mark.parametrize(("number", "source"), [(MAX_QUESTIONS, ENGINE), (MAX_QUESTIONS + 1, LEARNED)])
@pytest.mark.parametrize("of", [batch, embeddings])
async def test_an_engine_is_asked_about_so_many_at_most(of: type, number: int, source: CountSource) -> None:
    """Of more prompts all are guessed, so that no request waits for hundreds of round trips."""
    engine = Letters()
    count = await counting(engine).count(of(*["abc"] * number))
    assert (count.source, len(count.prompts)) == (source, number)
    assert len(engine.asked) == (source is ENGINE)
    assert count.estimated == (source is LEARNED)


@pytest.mark.parametrize(("number", "source"), [(MAX_RENDERED, LOCAL), (MAX_RENDERED + 1, LEARNED)])
async def test_a_counter_of_our_own_renders_so_many_at_most_while_a_request_waits(
    number: int, source: CountSource
) -> None:
    """It takes them as one piece of work; more are guessed and counted later."""
    own, engine = Letters(LOCAL), Letters()
    chosen, request = counting(own, engine), batch(*["abc"] * number)
    assert (await chosen.count(request)).source is source
    again = await chosen.count_again(request)
    assert again == (None if source is LOCAL else TokenCount((6,) * number, LOCAL))
    assert (own.asked, engine.asked) == ([number], [])


async def test_texts_need_no_rendering() -> None:
    """A thousand of them are counted at once."""
    own = Letters(LOCAL)
    assert (await counting(own).count(embeddings(*["abc"] * 1000))).source is LOCAL
    assert own.asked == [1000]


@pytest.mark.parametrize("source", [LOCAL, ENGINE])
async def test_the_limit_is_on_all_of_them_together(source: CountSource) -> None:
    """Two prompts that fit alone are guessed when they do not fit together; a counter of our own does them later."""
    counter = Letters(source)
    chosen = counting(counter, limit=100)
    assert (await chosen.count(batch("a" * 20))).source is source
    large = batch("a" * 20, "b" * 20)
    guess = await chosen.count(large)
    assert (guess.source, len(guess.slack)) == (LEARNED, 2)
    again = await chosen.count_again(large)
    assert again == (TokenCount((23, 23), LOCAL) if source is LOCAL else None)
    assert await chosen.count_again(batch("a" * 20)) is None


async def test_pairs_are_counted_again_too() -> None:
    """What was guessed is corrected in the same form."""
    chosen = counting(Letters(LOCAL), limit=10)
    large = rerank("q" * 20, "d" * 20, "e" * 30)
    guess, again = await chosen.count(large), await chosen.count_again(large)
    assert again == TokenCount((20, 20, 20, 30), LOCAL, (20, 0, 0, 0))
    assert len(guess.prompts) == len(again.prompts)


async def test_one_that_cannot_be_counted_makes_all_a_guess() -> None:
    """After one failure the counter is not asked about the rest; the next is asked about all."""
    own, engine = Letters(LOCAL, fails=True), Letters()
    assert (await counting(own, engine).count(batch("a", "b"))).source is ENGINE
    assert (own.asked, engine.asked) == ([2], [2])
    engine.fails = True
    assert (await counting(own, engine).count(batch("a", "b"))).source is LEARNED


# Learning


async def test_what_the_engine_fills_up_or_surrounds_teaches_nothing() -> None:
    """The usage of padded prompts, of those with a prefix and of lists of conversations is not that of their bytes."""
    chosen = PromptCounter(lambda _: (), LearnedRatios(LearnedPolicy(min_answers=1)))
    plain = embeddings("abc " * 10)
    before = await chosen.count(plain)
    chosen.learn(embeddings("abc " * 10, padding="max_length"), 40)
    chosen.learn(pooling.parse_cohere(b'{"texts":["abc"],"input_type":"x","truncate":"NONE"}'), 3)
    chosen.learn(batch("abc"), 3)
    chosen.learn(rerank("q", "d"), 3)
    assert await chosen.count(plain) == before
    chosen.learn(plain, 20)
    assert (await chosen.count(plain)).prompts == (20,)
