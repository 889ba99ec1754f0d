"""Which counters the settings make, and for which model."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from kvguard.counting import build_counter, lineage
from kvguard.engines.kind import EngineKind
from kvguard.errors import SettingsError
from kvguard.protocols import openai_chat, openai_completions
from kvguard.token_sections import MediaSettings, TokenSettings
from kvguard.tokenization.counter import CountSource, PromptCounter
from kvguard.tokenization.media_families import FAMILIES, UNKNOWN_FAMILY
from tests.kit.tokenizer import write_tokenizer

pytestmark = pytest.mark.anyio


@contextlib.contextmanager
def counting(
    *, engine: bool = True, parents: dict[str, str] | None = None, **tokens: object
) -> Iterator[PromptCounter]:
    """The counter of these settings, with an engine that counts seven tokens, whatever it is asked."""

    async def post(path: str, body: bytes, model: str | None) -> tuple[int, bytes]:
        return 200, b'{"count": 7}'

    with contextlib.ExitStack() as stack:
        yield build_counter(TokenSettings(**tokens), post if engine else None, lambda: parents or {}, stack)


async def source_of(counter: PromptCounter, prompt: str = "the cache", model: str = "m") -> CountSource:
    request = openai_completions.parse(json.dumps({"model": model, "prompt": prompt}).encode())
    return (await counter.count(request)).source


@pytest.mark.parametrize(
    ("tokens", "engine", "source"),
    [
        ({}, True, CountSource.ENGINE),
        ({}, False, CountSource.LEARNED),
        ({"tokenizer": "here"}, True, CountSource.LOCAL),
        ({"tokenizer": "here", "counter": "local"}, True, CountSource.LOCAL),
        ({"tokenizer": "here", "counter": "engine"}, True, CountSource.ENGINE),
        ({"tokenizer": "here", "counter": "learned"}, True, CountSource.LEARNED),
        ({"tokenizer": "here", "exact_max_bytes": 8}, True, CountSource.ENGINE),
        ({"tokenizer": "here", "exact_max_bytes": 9}, True, CountSource.LOCAL),
        ({"engine_max_bytes": 8}, True, CountSource.LEARNED),
        ({"engine_max_bytes": 9}, True, CountSource.ENGINE),
    ],
)
async def test_who_counts(tmp_path: Path, tokens: dict[str, object], engine: bool, source: CountSource) -> None:
    """The tokenizer where there is one, then the engine, then what was learned; each up to its own size of prompt."""
    if "tokenizer" in tokens:
        tokens = {**tokens, "tokenizer": write_tokenizer(tmp_path)}
    with counting(engine=engine, **tokens) as counter:
        assert await source_of(counter) is source


async def test_a_model_has_its_own_tokenizer_under_every_name(tmp_path: Path) -> None:
    """Adapters as the backends list them and aliases as configured lead to the base model; others to the engine."""
    tokens = {"tokenizers": {"m": write_tokenizer(tmp_path)}, "aliases": {"latest": "m", "tuned": "ad-1"}}
    with counting(parents={"ad-1": "m", "m": "m"}, **tokens) as counter:
        for name in ("m", "ad-1", "latest", "tuned", ""):
            assert await source_of(counter, model=name) is CountSource.LOCAL
        assert await source_of(counter, model="other") is CountSource.ENGINE


async def test_one_file_is_read_once(tmp_path: Path) -> None:
    """Two models with one tokenizer share it, default or not."""
    path = write_tokenizer(tmp_path)
    with counting(tokenizer=path, tokenizers={"a": path, "b": path}) as counter:
        assert [await source_of(counter, model=name) for name in ("a", "b", "c")] == [CountSource.LOCAL] * 3


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("m", ("m",)),
        ("unlisted", ("unlisted",)),
        ("ad-1", ("ad-1", "m")),
        ("latest", ("latest", "m")),
        ("newest", ("newest", "latest", "m")),
        ("tuned", ("tuned", "ad-1", "m")),
        ("", ("", "m")),
    ],
)
def test_names_a_model_has(model: str, names: tuple[str, ...]) -> None:
    """An alias leads to another or to an adapter, an adapter to its parent, and no name to the only model."""
    aliases = {"latest": "m", "newest": "latest", "tuned": "ad-1", "served-too": "m"}
    assert lineage(model, aliases, {"m": "m", "served-too": "served-too", "ad-1": "m"}) == names


@pytest.mark.parametrize(
    ("aliases", "parents", "names"),
    [
        ({}, {}, ("",)),
        ({}, {"m": "m"}, ("", "m")),
        ({}, {"m": "m", "ad-1": "m", "ad-2": "ad-1"}, ("", "m")),
        ({}, {"m": "m", "other": "other"}, ("",)),
        ({"other": "m"}, {"m": "m", "other": "other"}, ("", "m")),
        ({"": "other"}, {"m": "m", "other": "other"}, ("", "other")),
    ],
)
def test_no_model_named(aliases: dict[str, str], parents: dict[str, str], names: tuple[str, ...]) -> None:
    """It is the only one there is, whatever names it is served under; of several none is chosen."""
    assert lineage("", aliases, parents) == names


def test_names_that_lead_in_a_circle() -> None:
    """Backends may list what they like: each name is looked at once."""
    assert lineage("a", {}, {"a": "b", "b": "a"}) == ("a", "b")


def test_aliases_that_lead_in_a_circle_are_a_fault() -> None:
    """Every circle is told, each once; what only leads into one is none of it."""
    with pytest.raises(ValidationError, match=r"aliases\n.*lead in a circle: a, b; c") as caught:
        TokenSettings(aliases={"a": "b", "b": "a", "c": "c", "d": "a", "e": "m"})
    assert "d" not in str(caught.value).split("circle:")[1].split("[")[0]
    TokenSettings(aliases={"d": "e", "e": "m"})
    with pytest.raises(ValidationError, match="2 validation errors"):
        TokenSettings(aliases={"a": "a"}, media=[{"image": 0}])


async def test_an_adapter_may_have_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    """The first of its names that has one decides: here only the adapter has, and not its base."""
    tokens = {"tokenizers": {"ad-1": write_tokenizer(tmp_path)}, "aliases": {"tuned": "ad-1"}}
    with counting(parents={"ad-1": "m", "ad-2": "m", "m": "m"}, **tokens) as counter:
        assert [await source_of(counter, model=name) for name in ("ad-1", "tuned")] == [CountSource.LOCAL] * 2
        assert [await source_of(counter, model=name) for name in ("m", "ad-2")] == [CountSource.ENGINE] * 2


def test_every_tokenizer_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    """Each setting is named, the one for every model among them."""
    write_tokenizer(tmp_path)
    with (
        pytest.raises(SettingsError) as caught,
        counting(tokenizer="/nope", tokenizers={"a": "/nope1", "b": tmp_path, "c": "/nope2"}),
    ):
        pass
    assert caught.value.faults == (
        "tokens.tokenizers.a: no such file: /nope1",
        "tokens.tokenizers.c: no such file: /nope2",
        "tokens.tokenizer: no such file: /nope",
    )


def test_a_counter_that_cannot_be_is_a_fault(tmp_path: Path) -> None:
    """Local counting needs a tokenizer, and a tokenizer needs to be there."""
    with pytest.raises(SettingsError, match="local needs"), counting(counter="local"):
        pass
    with (
        pytest.raises(SettingsError, match=r"tokens\.tokenizers\.m: no such file"),
        counting(tokenizers={"m": tmp_path / "none"}),
    ):
        pass


async def test_an_operator_says_what_a_picture_is_worth() -> None:
    """The first entry that matches a name of the model counts, as a family or as a number."""
    part = {"type": "image_url", "image_url": {"url": "http://nowhere/a.png"}}
    media = [{"models": "LORA-*", "image": 9}, {"models": "m", "image": 100}, {"models": "*", "family": "gemma-3"}]
    with counting(media=media, parents={"ad-1": "m", "lora-1": "m"}, aliases={"x": "lora-1"}) as counter:
        for model, tokens in (("m", 107), ("ad-1", 107), ("lora-1", 16), ("x", 16), ("other", 267)):
            body = {"model": model, "messages": [{"role": "user", "content": [part]}]}
            count = await counter.count(openai_chat.parse(json.dumps(body).encode()))
            assert (count.prompts, count.slack) == ((tokens,), (0,))


def test_a_family_nobody_knows_is_a_fault() -> None:
    """The names there are stand in the message."""
    with pytest.raises(ValidationError, match="must be one of qwen3-omni"):
        TokenSettings(media=[{"family": "zeppelin"}])


def test_the_families_are_documented() -> None:
    """Every name the setting takes stands in its description."""
    told = " ".join((MediaSettings.model_fields["family"].description or "").split())
    assert all(f" {family.name}," in told for family in (*FAMILIES, UNKNOWN_FAMILY))


@pytest.mark.parametrize("tokens", [0, 10_000_001, 99_999_999_999_999_999_999])
def test_a_picture_is_worth_at_least_a_token_and_less_than_any_context(tokens: int) -> None:
    """A number nobody can mean is a fault of the settings."""
    TokenSettings(media=[{"image": 10_000_000}])
    with pytest.raises(ValidationError):
        TokenSettings(media=[{"image": tokens}])


async def test_tgi_is_asked_in_its_own_way() -> None:
    """Its `/tokenize` takes `inputs` and answers with the tokens."""
    asked = []

    async def post(path: str, body: bytes, model: str | None) -> tuple[int, bytes]:
        asked.append((path, body))
        return 200, b"[{}, {}, {}]"

    with contextlib.ExitStack() as stack:
        counter = build_counter(TokenSettings(), post, dict, stack, EngineKind.TGI)
        request = openai_completions.parse(b'{"prompt": "the cache"}')
        count = await counter.count(request)
    assert (count.prompts, count.source) == ((3,), CountSource.ENGINE)
    assert asked == [("/tokenize", b'{"inputs":"the cache"}')]
