"""Who counts, in which order, what is learned from it, and that a guess says it is one."""

import json
from collections.abc import Sequence

import pytest

from kvguard.protocols import openai_chat, openai_completions
from kvguard.protocols.fields import Fields
from kvguard.protocols.request import InferenceRequest
from kvguard.tokenization.counter import (
    CountFailed,
    CountSource,
    ExactCounter,
    PromptCounter,
    TokenCount,
    prompt_bytes,
    text_bytes,
)
from kvguard.tokenization.learned import LearnedPolicy, LearnedRatios, PromptKind

pytestmark = pytest.mark.anyio


class Words:
    """Counts words; refuses when told to."""

    def __init__(self, source: CountSource = CountSource.ENGINE, *, fails: bool = False) -> None:
        self.source = source
        self.fails = fails
        self.models: list[Fields] = []

    async def count_text(self, texts: tuple[str, ...], model: Fields) -> tuple[int, ...]:
        self.models.append(model)
        if self.fails:
            raise CountFailed("no")
        return tuple(len(text.split()) for text in texts)

    async def count_chats(self, chats: tuple[Fields, ...], model: Fields) -> tuple[int, ...]:
        texts = tuple(json.loads(bytes(chat["messages"]))[0]["content"] for chat in chats)
        return tuple(count + 3 for count in await self.count_text(texts, model))


def counting(
    *counters: Words, limit: int = 1000, base_of: dict[str, str] | None = None, **policy: int
) -> PromptCounter:
    """These counters in this order for every model, each asked about prompts up to a limit."""
    exact: Sequence[ExactCounter] = [ExactCounter(counter=each, prompt_limit_bytes=limit) for each in counters]
    bases = base_of or {}
    return PromptCounter(
        lambda _: exact, LearnedRatios(LearnedPolicy(**policy)), lambda name: (name, bases.get(name, name))
    )


def completion(model: str = "m", **fields: object) -> InferenceRequest:
    return openai_completions.parse(json.dumps({"model": model, **fields}).encode())


def chat(content: str, **fields: object) -> InferenceRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    return openai_chat.parse(json.dumps(body).encode())


async def test_the_exact_counter_is_asked_first_and_knows_the_model() -> None:
    """Text and chat are counted by the exact counter, which is told the model."""
    exact = Words()
    counter = counting(exact)
    assert await counter.count(completion(prompt=["a b", "c"])) == TokenCount((2, 1), CountSource.ENGINE)
    assert await counter.count(chat("a b")) == TokenCount((5,), CountSource.ENGINE)
    assert [bytes(model["model"]) for model in exact.models] == [b'"m"', b'"m"']


async def test_ids_need_no_counter() -> None:
    """Prompts that come as ids are as long as their lists, whoever would count."""
    counter = counting(Words(fails=True))
    assert await counter.count(completion(prompt=[1, 2, 3])) == TokenCount((3,), CountSource.IDS)
    assert await counter.count(completion(prompt=[[1], [2, 3]])) == TokenCount((1, 2), CountSource.IDS)
    assert await counter.count_again(completion(prompt=[1, 2, 3])) is None


async def test_the_next_is_asked_when_one_cannot_answer() -> None:
    """A local tokenizer that cannot render a conversation leaves it to the engine."""
    counter = counting(Words(CountSource.LOCAL, fails=True), Words())
    assert await counter.count(completion(prompt="a b")) == TokenCount((2,), CountSource.ENGINE)


async def test_a_guess_is_marked_as_one_and_has_room_to_be_wrong() -> None:
    """When nobody can count, bytes decide: 4 a token and a third more than that."""
    counter = counting(Words(fails=True))
    assert await counter.count(completion(prompt="x" * 400)) == TokenCount((101,), CountSource.LEARNED, (35,))
    guess = await counter.count(completion(prompt=["x" * 400, "é" * 200]))
    assert (guess.prompts, guess.slack) == ((101, 101), (35, 35))
    assert (guess.total, guess.estimated) == (202, True)
    exact = TokenCount((3,), CountSource.IDS)
    assert (exact.total, exact.estimated) == (3, False)
    text = '[{"role": "user", "content": "hello"}]'
    assert (await counter.count(chat("hello"))).prompts == (len(text) // 4 + 16,)


async def test_what_answers_say_is_learned() -> None:
    """They teach the ratio of their model and kind, which stands in when nobody can count; counts alone do not."""
    words = Words()
    counter = counting(words, min_answers=2)
    await counter.count(completion(prompt="abc " * 10))
    counter.learn(completion(prompt="abc " * 10), 10)
    words.fails = True
    assert (await counter.count(completion(prompt="abc " * 100))).prompts != (100,)
    counter.learn(completion(prompt="abc " * 10), 10)
    assert await counter.count(completion(prompt="abc " * 100)) == TokenCount((100,), CountSource.LEARNED, (0,))
    assert (await counter.count(chat("abc " * 100))).prompts != (100,)
    assert (await counter.count(completion("other", prompt="abc " * 100))).prompts != (100,)


async def test_usage_of_a_cut_prompt_or_of_ids_teaches_nothing() -> None:
    """Their tokens are not those of their bytes."""
    counter = counting(min_answers=1)
    before = await counter.count(completion(prompt="abc " * 10))
    counter.learn(completion(prompt="abc " * 10, truncate_prompt_tokens=2), 2)
    counter.learn(completion(prompt=[1, 2]), 2)
    assert await counter.count(completion(prompt="abc " * 10)) == before


async def test_a_large_prompt_is_guessed_at_once_and_counted_again() -> None:
    """Nobody waits for a giant prompt; a counter of our own does it later, the engine is not asked."""
    large, small = completion(prompt="abc " * 300), completion(prompt="abc " * 250)
    own, engine = Words(CountSource.LOCAL), Words()
    counter = counting(own, engine)
    assert (await counter.count(small)).source is CountSource.LOCAL
    assert (await counter.count(large)).source is CountSource.LEARNED
    assert await counter.count_again(large) == TokenCount((300,), CountSource.LOCAL)
    assert await counter.count_again(small) is None
    own.fails = True
    assert await counter.count_again(large) is None
    assert await counting(engine).count_again(large) is None
    assert not engine.models


async def test_an_adapter_is_learned_and_counted_as_its_base() -> None:
    """Whatever name a request has, the base model's counters and ratio are used."""
    asked: list[str] = []

    def exact(names: Sequence[str]) -> Sequence[ExactCounter]:
        asked.append("/".join(names))
        return ()

    counter = PromptCounter(
        exact, LearnedRatios(LearnedPolicy(min_answers=1)), {"ad-1": ("ad-1", "m"), "m": ("m",)}.__getitem__
    )
    counter.learn(completion("ad-1", prompt="abc " * 10), 10)
    assert (await counter.count(completion(prompt="abc " * 100))).prompts == (100,)
    assert (await counter.count(completion("ad-1", prompt="abc " * 100))).prompts == (100,)
    assert asked == ["m", "ad-1/m"]


def test_kinds_of_prompts_are_told_apart() -> None:
    """A conversation with tools has other text in it than one without."""
    seen: list[PromptKind] = []

    class Watching(LearnedRatios):
        def observe(self, model: str, kind: PromptKind, *, size_bytes: int, tokens: int) -> None:
            seen.append(kind)

    counter = PromptCounter(lambda _: (), Watching(LearnedPolicy()))
    for request in (completion(prompt="a"), chat("a"), chat("a", tools=[{"type": "function"}])):
        counter.learn(request, 1)
    assert seen == [PromptKind.TEXT, PromptKind.CHAT, PromptKind.TOOLS]


@pytest.mark.parametrize(("text", "size"), [("", 0), ("abc", 3), ("é", 2), ("😀", 4), ("\ud800", 1), ("a\x00", 2)])
def test_bytes_of_a_text(text: str, size: int) -> None:
    """UTF-8, a lone surrogate as the mark that replaces it."""
    assert text_bytes(text) == size


def test_bytes_of_a_prompt_are_those_of_all_that_is_tokenised() -> None:
    """Every text, or every field the template may print."""
    assert prompt_bytes(completion(prompt=["abc", "é"]).prompt) == 5
    fields = {"messages": [{"role": "user", "content": "hi"}], "tools": []}
    request = openai_chat.parse(json.dumps(fields).encode())
    assert prompt_bytes(request.prompt) == len(json.dumps(fields["messages"])) + 2


@pytest.mark.parametrize(
    ("fields", "told"), [({}, None), ({"add_special_tokens": True}, None), ({"add_special_tokens": False}, b"false")]
)
async def test_special_tokens_switched_off_are_told_to_the_counter(fields: dict[str, bool], told: bytes | None) -> None:
    """A completion has them unless it says otherwise."""
    words = Words()
    await counting(words).count(completion(prompt="a b", **fields))
    (model,) = words.models
    assert (bytes(model["add_special_tokens"]) if "add_special_tokens" in model else None) == told


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}


async def test_parts_that_are_not_text_are_allowed_for_and_never_counted() -> None:
    """The counter sees a mark in place of the picture; what to expect of it is added, what it may be more is slack."""
    seen: list[bytes] = []

    class Watching(Words):
        async def count_chats(self, chats: tuple[Fields, ...], model: Fields) -> tuple[int, ...]:
            seen.extend(bytes(chat["messages"]) for chat in chats)
            return (10,) * len(chats)

    body = {"model": "gemma-3-4b", "messages": [{"role": "user", "content": [PICTURE]}]}
    request = openai_chat.parse(json.dumps(body).encode())
    count = await counting(Watching()).count(request)
    assert (count.prompts, count.source, count.slack) == ((270,), CountSource.ENGINE, (0,))
    assert b"AAAA" not in seen[0]
    unknown = openai_chat.parse(json.dumps({**body, "model": "m"}).encode())
    count = await counting(Watching()).count(unknown)
    assert (count.prompts, count.slack, count.estimated) == ((10 + 1024,), (8192 - 1024,), True)
    guess = await counting().count(request)
    assert guess.source is CountSource.LEARNED
    assert guess.prompts[0] + guess.slack[0] < 400


async def test_usage_of_a_prompt_with_a_picture_teaches_nothing() -> None:
    """How much of it was text is not known."""
    body = {"model": "m", "messages": [{"role": "user", "content": [PICTURE]}]}
    counter = counting(min_answers=1)
    before = await counter.count(chat("abc"))
    counter.learn(openai_chat.parse(json.dumps(body).encode()), 5000)
    assert await counter.count(chat("abc")) == before
