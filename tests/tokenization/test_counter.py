"""Who counts, in which order, and that the estimate says it is one."""

import json

import pytest

from kvguard.protocols import openai_chat, openai_completions
from kvguard.protocols.fields import Fields
from kvguard.tokenization.counter import CountFailed, CountSource, EstimateRule, PromptCounter, TokenCount

pytestmark = pytest.mark.anyio


class Exact:
    """Counts words; refuses when told to."""

    source = CountSource.ENGINE

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.models: list[Fields] = []

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        self.models.append(model)
        if self.fails:
            raise CountFailed("no")
        return tuple(len(text.split()) for text in texts)

    async def count_chat(self, chat: Fields, model: Fields) -> int:
        (count,) = await self.count_text((json.loads(bytes(chat["messages"]))[0]["content"],), model)
        return count + 3


def completion(**fields: object) -> object:
    return openai_completions.parse(json.dumps({"model": "m", **fields}).encode())


def chat(content: str) -> object:
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    return openai_chat.parse(json.dumps(body).encode())


async def test_the_exact_counter_is_asked_first_and_knows_the_model() -> None:
    """Text and chat are counted by the exact counter, which is told the model."""
    exact = Exact()
    counter = PromptCounter(exact, EstimateRule())
    assert await counter.count(completion(prompt=["a b", "c"])) == TokenCount((2, 1), CountSource.ENGINE)
    assert await counter.count(chat("a b")) == TokenCount((5,), CountSource.ENGINE)
    assert [bytes(model["model"]) for model in exact.models] == [b'"m"', b'"m"']


async def test_ids_need_no_counter() -> None:
    """Prompts that come as ids are as long as their lists, whoever would count."""
    counter = PromptCounter(Exact(fails=True), EstimateRule())
    assert await counter.count(completion(prompt=[1, 2, 3])) == TokenCount((3,), CountSource.IDS)
    assert await counter.count(completion(prompt=[[1], [2, 3]])) == TokenCount((1, 2), CountSource.IDS)


async def test_an_estimate_is_marked_as_one() -> None:
    """When the exact counter fails, bytes decide, and the answer says so."""
    counter = PromptCounter(Exact(fails=True), EstimateRule(bytes_per_token=2.0, chat_overhead_tokens=10))
    assert await counter.count(completion(prompt="abcd")) == TokenCount((3,), CountSource.ESTIMATE)
    assert await counter.count(completion(prompt="ééé")) == TokenCount((4,), CountSource.ESTIMATE)
    guess = await counter.count(chat("hello"))
    assert guess == TokenCount((len('[{"role": "user", "content": "hello"}]') // 2 + 10,), CountSource.ESTIMATE)
