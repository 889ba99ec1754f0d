"""`vllm bench serve`, which the CPU wheel's own command cannot start: `python bench_serve.py http://host:port MODEL`.

It runs where vLLM is installed, sends a few prompts one after another, and tells what its result file says.
"""

import json
import sys
import tempfile
from pathlib import Path

from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

PROMPTS, OUTPUT_TOKENS = 4, 12

ROUTES = {"completions": ("openai", "/v1/completions"), "chat": ("openai-chat", "/v1/chat/completions")}


def bench(backend: str, endpoint: str, directory: Path) -> dict:
    """The result file of one run."""
    flags = ["--backend", backend, "--base-url", sys.argv[1], "--endpoint", endpoint, "--model", sys.argv[2]]
    flags += ["--served-model-name", "tiny", "--dataset-name", "random", "--num-prompts", str(PROMPTS)]
    flags += ["--random-input-len", "24", "--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos"]
    flags += ["--max-concurrency", "1", "--temperature", "0", "--seed", "1", "--disable-tqdm"]
    flags += ["--save-result", "--save-detailed", "--result-dir", str(directory), "--result-filename", "result.json"]
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args(flags))
    return json.loads((directory / "result.json").read_text())


TOLD = ("completed", "failed", "total_input_tokens", "total_output_tokens", "input_lens", "output_lens", "errors")

for name, (backend, endpoint) in ROUTES.items():
    with tempfile.TemporaryDirectory() as scratch:
        result = bench(backend, endpoint, Path(scratch))
        outcome = {"content": result["generated_texts"], **{key: result[key] for key in TOLD}}
        print("\n" + json.dumps({"call": name, **outcome}), flush=True)
