"""A model's own tokenizer and chat template, on a small one trained here."""

import json
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from kvguard.errors import SettingsError
from kvguard.protocols.fields import Fields
from kvguard.tokenization.counter import CountFailed
from kvguard.tokenization.local import load_local_counter

pytestmark = pytest.mark.anyio
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    trained().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"})
    )
    return path


def chat(**fields: object) -> Fields:
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}


async def test_text_is_counted_with_the_special_tokens_the_tokenizer_adds(directory: Path) -> None:
    """Counts equal the tokenizer's own, for unicode, empty and broken text too."""
    texts = ("the tokenizer", "", "héllo 世界 🎉", "def f(x):\n\treturn x", "\ud800")
    expected = [len(trained().encode(text.encode(errors="replace").decode()).ids) for text in texts]
    assert list(await load_local_counter(directory).count_text(texts, {})) == expected


async def test_chat_is_counted_as_the_template_renders_it(directory: Path) -> None:
    """System text, tools, text parts and the generation prompt are all in the count, and no special token twice."""
    counter = load_local_counter(directory / "tokenizer.json")
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
    text += json.dumps(tools)
    bare = len(trained().encode(text, add_special_tokens=False).ids)
    full = len(trained().encode(text + "<|im_start|>assistant\n", add_special_tokens=False).ids)
    assert await counter.count_chat(chat(messages=messages, tools=tools, add_generation_prompt=False), {}) == bare
    assert await counter.count_chat(chat(messages=messages, tools=tools), {}) == full
    assert await counter.count_chat(chat(messages=messages, tools=tools, add_special_tokens=True), {}) == full + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"messages": [{"role": "user", "content": "a"}], "continue_final_message": True},
        {"messages": [{"role": "user", "content": "a"}], "kv_transfer_params": {"prompt_token_ids": [1]}},
        {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ 1 }}"},
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": 3},
    ],
)
async def test_what_the_template_cannot_know_is_a_failed_count(directory: Path, fields: dict[str, object]) -> None:
    """A conversation the local template would get wrong is left to the next counter."""
    with pytest.raises(CountFailed):
        await load_local_counter(directory).count_chat(chat(**fields), {})


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('no system role') }}", "{{ messages.clear() }}", "{{ ''.__class__.mro() }}"]
)
async def test_a_template_cannot_do_anything_but_refuse(tmp_path: Path, source: str) -> None:
    """A template's own complaint, a write and an escape attempt all end as a failed count."""
    trained().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(CountFailed):
        await load_local_counter(tmp_path).count_chat(chat(messages=[{"role": "user", "content": "a"}]), {})


async def test_without_a_template_only_text_is_counted(tmp_path: Path) -> None:
    """A tokenizer alone counts completions and leaves chat to the next counter."""
    trained().save(str(tmp_path / "tokenizer.json"))
    counter = load_local_counter(tmp_path)
    assert await counter.count_text(("a",), {}) == (2,)
    with pytest.raises(CountFailed):
        await counter.count_chat(chat(messages=[]), {})


def test_a_date_in_a_template_is_todays(tmp_path: Path) -> None:
    """Templates that print the date render."""
    trained().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%Y') | length }}")
    template = load_local_counter(tmp_path)._template
    assert template.render({"messages": []}) == "4"


@pytest.mark.parametrize("content", [None, "{", '{"model": 1}'])
def test_a_broken_tokenizer_is_a_fault_of_the_settings(tmp_path: Path, content: str | None) -> None:
    """A missing or unreadable file is named."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SettingsError, match=r"tokenizer\.json"):
        load_local_counter(tmp_path)
