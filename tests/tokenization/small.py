"""A small byte-level tokenizer with three control tokens, trained in a blink, and directories that hold it."""

import json
from pathlib import Path

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from kvguard.protocols.fields import Fields

CONTROL = ("<s>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"}


def trained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def write(directory: Path, config: object = CONFIG, **files: str) -> Path:
    """The tokenizer, its configuration and further files, `chat_template__jinja` for `chat_template.jinja`."""
    trained().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def tokens(text: str) -> int:
    """The tokenizer's own count, without the special token it adds."""
    return len(trained().encode(text, add_special_tokens=False).ids)


def chat(**fields: object) -> Fields:
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
