"""What a tokenizer directory holds: the tokenizer, its chat templates and special tokens, read as transformers does.

Facts of transformers 5.19, which vLLM 0.32 loads tokenizers with.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvguard.tokenization.rendering import ChatTemplates
from kvguard.tokenization.template import ChatTemplate

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

# Models whose prompts vLLM builds in code of its own, whatever template lies beside the tokenizer.
_RENDERED_IN_CODE = frozenset(
    {
        "DeepseekV32ForCausalLM",
        "DeepseekV41ForCausalLM",
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForConditionalGeneration",
        "GptOssForCausalLM",
        "InklingForCausalLM",
        "InklingForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "MoonshotKimiaForCausalLM",
    }
)
_NAMED_TOKENS = frozenset({"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})

Config = dict[str, Any]


def read_config(directory: Path) -> Config:
    """`tokenizer_config.json`, with the older files beside it merged in."""
    config = _read_json(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= _read_json(directory / "special_tokens_map.json")
    if not config.get("extra_special_tokens"):
        config["extra_special_tokens"] = config.pop("additional_special_tokens", None) or []
    if isinstance(config["extra_special_tokens"], dict):
        config |= config.pop("extra_special_tokens")
    return config


def read_tokenizer(file: Path, config: Config) -> "Tokenizer":
    """The tokenizer as it counts: nothing truncated or padded, every token of the configuration known."""
    from tokenizers import Tokenizer

    # The library would spread one prompt over every core, and prompts of others would wait for it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # noqa: TID251  its only switch
    tokenizer = Tokenizer.from_file(str(file))
    if _is_rebuilt(file.parent, config):
        _rebuild(tokenizer, config)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens", False))
    tokenizer.add_tokens(_missing_tokens(tokenizer, config))
    return tokenizer


def _is_rebuilt(directory: Path, config: Config) -> bool:
    """Whether transformers keeps only the vocabulary of the file: for Llama models of the SentencePiece kind."""
    named = str(config.get("tokenizer_class", "")).removesuffix("Fast") == "LlamaTokenizer"
    return named and _read_json(directory / "config.json").get("model_type") == "llama"


def _rebuild(tokenizer: "Tokenizer", config: Config) -> None:
    """Mark spaces as transformers' own `LlamaTokenizer` does, whatever the file says."""
    from tokenizers.pre_tokenizers import Metaspace

    if not (tokenizer.pre_tokenizer is None or isinstance(tokenizer.pre_tokenizer, Metaspace)):
        return
    scheme = "always" if config.get("legacy") else "first"
    if config.get("add_prefix_space") is False:
        scheme = "never"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.model.fuse_unk = True
    tokenizer.model.byte_fallback = True


def _missing_tokens(tokenizer: "Tokenizer", config: Config) -> list["AddedToken"]:
    """Tokens the configuration adds to those of the file, in the order of their ids."""
    listed = sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0]))
    tokens = [_added_token(token) for _, token in listed]
    known = {token.content for token in (*tokens, *tokenizer.get_added_tokens_decoder().values())}
    named = {_token_text(token): token for token in _special_tokens(config)}
    return tokens + [_added_token(token) for text, token in named.items() if text not in known]


def _special_tokens(config: Config) -> list[Any]:
    return [config[name] for name in _token_names(config)] + list(config.get("extra_special_tokens") or [])


def _added_token(token: Any) -> "AddedToken":
    from tokenizers import AddedToken

    if isinstance(token, str):
        return AddedToken(token, special=True)
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(token["content"], **{name: token[name] for name in flags if name in token})


def read_templates(directory: Path, config: Config) -> ChatTemplates:
    """The chat templates, none for a model whose prompts vLLM does not build from a template."""
    if _is_rendered_in_code(directory):
        return ChatTemplates(None, None)
    sources = _template_sources(directory, config)
    special_tokens = special_texts(config)
    compiled = {source: ChatTemplate(source, special_tokens) for source in dict.fromkeys(sources.values())}
    default = sources.get("default")
    processor = _read_json(directory / "chat_template.json").get("chat_template", default)
    if processor is not None and processor not in compiled:
        compiled[processor] = ChatTemplate(processor, special_tokens)
    with_tools = sources.get("tool_use", default)
    return ChatTemplates(*(None if source is None else compiled[source] for source in (processor, with_tools)))


def _template_sources(directory: Path, config: Config) -> dict[str, str]:
    """Templates by name; files of their own win over `tokenizer_config.json`."""
    named = {
        file.stem: file.read_text(encoding="utf-8")
        for file in sorted(directory.glob("additional_chat_templates/*.jinja"))
    }
    single = directory / "chat_template.jinja"
    if single.is_file():
        named["default"] = single.read_text(encoding="utf-8")
    given = config.get("chat_template")
    if named or given is None:
        return named
    if isinstance(given, list):
        return {str(template["name"]): str(template["template"]) for template in given}
    return given if isinstance(given, dict) else {"default": str(given)}


def _is_rendered_in_code(directory: Path) -> bool:
    architectures = _read_json(directory / "config.json").get("architectures") or []
    mistral = any(directory.glob("consolidated*.safetensors")) and (
        (directory / "tekken.json").is_file() or any(directory.glob("tokenizer.model.v*"))
    )
    return mistral or not _RENDERED_IN_CODE.isdisjoint(architectures)


def special_texts(config: Config) -> dict[str, str]:
    """The special tokens templates may print, by the names they are printed with."""
    return {name: _token_text(config[name]) for name in _token_names(config)}


def _token_names(config: Config) -> list[str]:
    return [name for name, value in config.items() if _is_token(name, value)]


def _is_token(name: str, value: object) -> bool:
    if isinstance(value, dict):
        return "content" in value and name.endswith("_token")
    return isinstance(value, str) and (name in _NAMED_TOKENS or name.endswith("_token"))


def _token_text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _read_json(file: Path) -> Config:
    # Python's own decoder: configurations hold Infinity and numbers of any length.
    return dict(json.loads(file.read_bytes())) if file.is_file() else {}
