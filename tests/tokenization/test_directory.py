"""What is read from a tokenizer directory, and how it counts then."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from kvguard.tokenization.directory import read_config, read_templates, read_tokenizer, special_texts
from tests.tokenization.small import CONFIG, chat, trained, write

ASKED = chat(messages=[{"role": "user", "content": "hi"}])
WITH_TOOLS = chat(messages=[{"role": "user", "content": "hi"}], tools=[{"function": {"name": "f"}}])


def rendered(directory: Path) -> tuple[str, str]:
    templates = read_templates(directory, read_config(directory))
    return templates.render(ASKED), templates.render(WITH_TOOLS)


def test_a_file_of_its_own_wins_over_the_configuration(tmp_path: Path) -> None:
    """`chat_template.jinja` is what transformers prefers."""
    assert rendered(write(tmp_path, {"chat_template": "old"})) == ("old", "old")
    assert rendered(write(tmp_path, {"chat_template": "old"}, chat_template__jinja="new")) == ("new", "new")


def test_named_templates_are_chosen_by_tools(tmp_path: Path) -> None:
    """Templates may be a list in the configuration or files in a folder."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    assert rendered(write(tmp_path, {"chat_template": named})) == ("plain", "tools")
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("tools of the folder")
    assert rendered(write(tmp_path, {}, chat_template__jinja="plain of the file")) == (
        "plain of the file",
        "tools of the folder",
    )
    templates = read_templates(write(tmp_path, {"chat_template": {"rag": "r"}}), {"chat_template": {"rag": "r"}})
    assert templates.plain is not None


def test_a_processors_template_serves_conversations_without_tools(tmp_path: Path) -> None:
    """`chat_template.json` is read by processors, which vLLM asks only where no tools are given."""
    both = write(tmp_path, {"chat_template": "tokenizer"}, chat_template__json='{"chat_template": "processor"}')
    assert rendered(both) == ("processor", "tokenizer")
    assert read_templates(write(tmp_path, {}), {}).with_tools is None


@pytest.mark.parametrize("architecture", ["GptOssForCausalLM", "DeepseekV32ForCausalLM"])
def test_models_that_are_rendered_in_code_have_no_template(tmp_path: Path, architecture: str) -> None:
    """Whatever template lies beside the tokenizer, vLLM does not use it."""
    write(tmp_path, config__json=json.dumps({"architectures": [architecture]}))
    assert read_templates(tmp_path, CONFIG).plain is None


def test_a_mistral_repository_has_no_template(tmp_path: Path) -> None:
    """With weights and vocabulary in Mistral's own format, vLLM renders with Mistral's own tokenizer."""
    write(tmp_path, tekken__json="{}")
    assert read_templates(tmp_path, CONFIG).plain is not None
    (tmp_path / "consolidated.safetensors").write_text("")
    assert read_templates(tmp_path, CONFIG).plain is None


def test_templates_are_given_every_named_special_token(tmp_path: Path) -> None:
    """Standard and model-specific names, as text or as object; flags and null are no tokens."""
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
        "add_bos_token": True,
        "extra_special_tokens": {"image_token": "<img>"},
    }
    write(tmp_path, config)
    expected = {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<img>"}
    assert special_texts(read_config(tmp_path)) == expected
    write(tmp_path, {"eos_token": "a"}, special_tokens_map__json='{"eos_token": {"content": "b"}}')
    assert special_texts(read_config(tmp_path)) == {"eos_token": "b"}


def test_tokens_of_the_configuration_are_known_to_the_tokenizer(tmp_path: Path) -> None:
    """A token that only the configuration names is one token, at its place in the order of ids."""
    config = {
        "added_tokens_decoder": {"401": {"content": "<two>", "special": True}, "400": {"content": "<one>"}},
        "eos_token": "<three>",
        "additional_special_tokens": ["<four>", {"content": "<s>"}],
    }
    tokenizer = read_tokenizer(write(tmp_path, config) / "tokenizer.json", read_config(tmp_path))
    ids = tokenizer.encode("<one><two><three><four><s>", add_special_tokens=False).ids
    assert ids == [400, 401, 402, 403, 0]


def test_nothing_is_truncated_padded_or_split_unasked(tmp_path: Path) -> None:
    """What a tokenizer file says of lengths is not for counting; control tokens split only if the model says so."""
    tokenizer = trained()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "a few words<|im_end|>"
    plain = read_tokenizer(tmp_path / "tokenizer.json", {})
    assert len(plain.encode(text).ids) == len(trained().encode(text).ids)
    split = read_tokenizer(tmp_path / "tokenizer.json", {"split_special_tokens": True})
    assert len(split.encode(text).ids) > len(plain.encode(text).ids)


@pytest.mark.parametrize(
    ("config", "scheme"),
    [
        ({"tokenizer_class": "LlamaTokenizer"}, "first"),
        ({"tokenizer_class": "LlamaTokenizerFast", "legacy": True}, "always"),
        ({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False, "legacy": True}, "never"),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, None),
    ],
)
def test_llama_tokenizers_are_rebuilt(tmp_path: Path, config: dict[str, object], scheme: str | None) -> None:
    """transformers takes the vocabulary of the file and marks spaces its own way, for `model_type` llama."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Prepend("\u2581")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    read = read_tokenizer(tmp_path / "tokenizer.json", config)
    assert (getattr(read.pre_tokenizer, "prepend_scheme", None), read.normalizer is None) == (scheme, bool(scheme))
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    assert read_tokenizer(tmp_path / "tokenizer.json", config).normalizer is not None


def test_a_byte_level_llama_stays_as_it_is(tmp_path: Path) -> None:
    """Only the SentencePiece kind is rebuilt."""
    write(tmp_path, config__json='{"model_type": "llama"}')
    read = read_tokenizer(tmp_path / "tokenizer.json", {"tokenizer_class": "LlamaTokenizer"})
    assert isinstance(read.pre_tokenizer, pre_tokenizers.ByteLevel)
