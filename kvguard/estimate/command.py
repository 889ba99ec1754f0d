"""`kvguard estimate`: arguments in, text, JSON or a picture out."""

import argparse
import json
from typing import Any

from kvguard import presets
from kvguard.errors import SettingsError
from kvguard.estimate.document import document
from kvguard.estimate.model import Model, build_model
from kvguard.estimate.options import Options, read_options
from kvguard.estimate.render import render

_EXAMPLE = """examples:
  kvguard estimate mistral-7b-v0.1 --context 4096,32768
  kvguard estimate ./my-model --gpu-memory 24GiB --overhead 2GiB --prompt 1800 --output 512
  kvguard estimate llama-3.1-70b --tp 8 --gpu-memory 80GiB --kv-dtype fp8 --json"""


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "estimate",
        help="KV cache bytes, blocks and requests that fit, from a model's config.json",
        description="KV cache bytes, blocks and requests that fit, from a model's config.json alone.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", nargs="*", metavar="CONFIG", help="config.json, a directory with one, or a preset")
    parser.add_argument("--list", action="store_true", help="print the presets")
    _add_load(parser)
    _add_memory(parser)
    _add_engine(parser)
    parser.add_argument("--bound", action="store_true", help="upper bound for attention that is not understood")
    parser.add_argument("--json", action="store_true", help="exact integers; a list for several CONFIGs")
    parser.add_argument("--plot", metavar="FILE", help="draw one sequence's memory over context (.png or .svg)")
    parser.set_defaults(run=run)


def _add_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", default="1,4,8", metavar="N,...", help="requests at once (%(default)s)")
    parser.add_argument(
        "--context", default="1024,4096,8192,16384", metavar="N,...", help="tokens of each with KV (%(default)s)"
    )
    parser.add_argument("--beams", metavar="N", help="sequences of a request, bound without prefix sharing (1)")
    parser.add_argument("--prompt", metavar="N", help="with --output: one more kind of request to fit")
    parser.add_argument("--output", metavar="N", help="tokens generated after --prompt")


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu-memory", metavar="SIZE", help="memory of one GPU, such as 24GiB: how much fits?")
    parser.add_argument("--weights", metavar="SIZE", help="of the whole model; auto (the default) works it out")
    parser.add_argument("--utilization", default="0.9", metavar="RATIO", help="share the engine takes (%(default)s)")
    parser.add_argument("--overhead", metavar="SIZE", help="activations and CUDA graphs on each GPU (0)")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=("vllm", "tgi"), default="vllm")
    parser.add_argument("--kv-dtype", default="auto", metavar="DTYPE", help="--kv-cache-dtype of the engine (auto)")
    parser.add_argument("--mamba-dtype", default="auto", metavar="DTYPE", help="--mamba-ssm-cache-dtype (auto)")
    parser.add_argument("--tp", metavar="N", help="tensor parallel size (1)")
    parser.add_argument("--pp", metavar="N", help="pipeline parallel size (1)")
    parser.add_argument("--block-size", metavar="N", help="tokens of a block (the engine's own)")
    parser.add_argument("--max-num-batched-tokens", metavar="N", help="tokens of one prefill step (8192)")
    parser.add_argument("--max-num-seqs", metavar="N", help="requests the engine runs at once (256; TGI none)")
    parser.add_argument("--speculative-tokens", metavar="N", help="look-ahead slots of a draft model (0)")
    parser.add_argument("--mtp", action="store_true", help="the model's own draft layers are in use")
    parser.add_argument("--no-prefix-caching", action="store_true")
    parser.add_argument("--disable-hybrid-kv-cache-manager", action="store_true")


def run(chosen: argparse.Namespace) -> None:
    """Print what was asked for. Raise SettingsError with every fault."""
    if chosen.list:
        print(_presets())
        return
    options = read_options(chosen)
    models, faults = _models(options)
    if models:
        _show(models, options)
    if faults:
        raise SettingsError(faults)


def _show(models: list[Model], options: Options) -> None:
    if options.plot is not None:
        # Drawing needs matplotlib, an extra that nothing else needs.
        from kvguard.estimate.plot import draw

        draw(models, options.plot)
    if options.json:
        documents = [document(model, options) for model in models]
        print(json.dumps(documents if len(options.configs) > 1 else documents[0], indent=2))
    else:
        print("\n\n".join(render(model, options) for model in models))


def _models(options: Options) -> tuple[list[Model], list[str]]:
    """Those that can be estimated, and why the others cannot."""
    models, faults = [], []
    for argument in options.configs:
        try:
            models.append(build_model(argument, options))
        except ValueError as error:
            faults.append(str(error))
    return models, faults


def _presets() -> str:
    known = [presets.load(name) for name in presets.names()]
    width = max(len(preset.name) for preset in known)
    return "\n".join(f"{preset.name:<{width}}  {preset.source}" for preset in known)
