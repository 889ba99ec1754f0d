"""Write a tiny Llama without weights for `vllm serve --load-format dummy`: its output is noise, its KV cache is real.

Owns the model directory and nothing else. The same bytes come out on every machine: the tokenizer learns from text
generated here, and the vocabulary is full, so every token the model can emit is one the tokenizer knows.
"""

import argparse
import json
import random
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_TOKENS = 4096
CONTEXT_TOKENS = 2048
DEFAULT_DIRECTORY = Path(__file__).resolve().parents[2] / ".models" / "tiny"

BOS, IM_START, EOS = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID = SPECIAL_TOKENS.index(BOS), SPECIAL_TOKENS.index(EOS)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY_TOKENS,
    "max_position_embeddings": CONTEXT_TOKENS,
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "use_cache": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}

# Models that forget: every layer a window, and two full layers among ten that slide. Deeper than the plain one, so that
# a step of a prefill takes long enough to be seen in the gauge.
SLIDING_CONFIG = {
    **CONFIG,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "num_hidden_layers": 12,
    "sliding_window": 200,
}

HYBRID_CONFIG = {
    **CONFIG,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 12,
    "sliding_window": 200,
    "sliding_window_pattern": 6,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 32,
    "rope_local_base_freq": 10000.0,
}

CONFIGS = {"plain": CONFIG, "sliding": SLIDING_CONFIG, "hybrid": HYBRID_CONFIG}

GENERATION_CONFIG = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}

CHAT_TEMPLATE = """\
{%- if messages[0].role == 'system' -%}
  {%- set system, turns = messages[0].content, messages[1:] -%}
{%- else -%}
  {%- set system, turns = '', messages -%}
{%- endif -%}
{%- if system or tools -%}
  {{- '<|im_start|>system\\n' + system -}}
  {%- if tools -%}
    {{- '\\nTools:' -}}
    {%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
  {%- endif -%}
  {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in turns -%}
  {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
  {%- for call in message.tool_calls or [] -%}{{- '\\n' + (call.function | tojson) -}}{%- endfor -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": CONTEXT_TOKENS,
    "bos_token": BOS,
    "eos_token": EOS,
    "pad_token": BOS,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}

COMMON_WORDS = """
the be is are was to of and a in that have it for not on with as you do at this but by from they we say or an will one
all would there their what so up out if about who get which go me when make can like time no just know take people into
year your good some could them see other than then now look only come its over think also back after use two how our
work first well way even new want because any these give day most us user assistant system tool function name
description type object string number properties required parameters arguments content role message model token cache
request answer question write read list city weather date query search result code file line error server memory block
"""
ONSETS = "b c d f g h l m n p r s t v w st tr pr ch sh"
VOWELS = "aeiou"
ENDINGS = ("", "n", "r", "s", "t", "ing", "ed", "er", "ly", "tion")


def generated_words(rng: random.Random, *, count: int) -> list[str]:
    """Common English words first, then invented ones, each once."""
    words = dict.fromkeys(COMMON_WORDS.split())
    onsets = ONSETS.split()
    while len(words) < count:
        stem = "".join(rng.choice(onsets) + rng.choice(VOWELS) for _ in range(rng.randint(1, 3)))
        words[stem + rng.choice(ENDINGS)] = None
    return list(words)


def generated_text(*, seed: int = 20, lines: int = 6000) -> list[str]:
    """Sentences and JSON objects in which early words of the list are far more frequent than late ones."""
    rng = random.Random(seed)
    words = generated_words(rng, count=6000)

    def word() -> str:
        return words[int(len(words) * rng.random() ** 3)]

    def line(index: int) -> str:
        if index % 5 == 0:
            return json.dumps({word(): word(), word(): {word(): rng.randint(0, 999)}, word(): [word(), word()]})
        return " ".join(word() for _ in range(rng.randint(6, 16))).capitalize() + rng.choice(".?!")

    return [line(index) for index in range(lines)]


def trained_tokenizer() -> Tokenizer:
    """A byte-level BPE that knows any text and adds no token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(generated_text(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY_TOKENS:
        msg = f"the text filled {tokenizer.get_vocab_size()} of {VOCABULARY_TOKENS} tokens"
        raise ValueError(msg)
    return tokenizer


def write_model(directory: Path = DEFAULT_DIRECTORY, kind: str = "plain") -> Path:
    """Write the model's files, replacing those of an earlier run."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(trained_tokenizer().to_str(pretty=True), encoding="utf-8")
    for name, content in (
        ("config.json", CONFIGS[kind]),
        ("generation_config.json", GENERATION_CONFIG),
        ("tokenizer_config.json", TOKENIZER_CONFIG),
    ):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=DEFAULT_DIRECTORY)
    parser.add_argument("--kind", choices=CONFIGS, default="plain")
    arguments = parser.parse_args()
    print(write_model(arguments.directory, arguments.kind))


if __name__ == "__main__":
    main()
