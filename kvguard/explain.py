"""`kvguard explain`: what would happen to a request, asked of a running kvguard or worked out from settings alone.

Offline the same objects decide, over an assumed occupancy: `--usage` of the cache is held by others.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from kvguard.admission.usage import EngineUsage, UsageSample
from kvguard.backend_sections import SIMULATED_TGI, SIMULATED_VLLM, BackendSettings
from kvguard.backends import LayoutOf, assumed_facts, build_backend, layout_from
from kvguard.bootstrap import simulated
from kvguard.clock import ManualClock
from kvguard.counting import build_counter
from kvguard.engines.tgi_blocks import usable_blocks
from kvguard.engines.vllm_blocks import BLOCK_SIZE
from kvguard.errors import InvalidRequest, SettingsError
from kvguard.estimate.source import Source, find_source
from kvguard.policies import governance_of, pipeline_policy, routes_of
from kvguard.pool.backend import Backend
from kvguard.proxy.controller import Controller
from kvguard.proxy.explain import Explainer, UnknownRoute
from kvguard.proxy.headers import OPT_OUT
from kvguard.proxy.upstream import Headers
from kvguard.settings import Settings
from kvguard.simulator.config import tgi_sim, vllm_sim
from kvguard.sources import load_settings
from kvguard.tokenization.counter import CountSource, PromptCounter

URL: Final = "http://127.0.0.1:9090"
PATH: Final = "/debug/explain"
TIMEOUT_SECONDS: Final = 30.0

# Where the length of an answer is taken from for the peak, by its source.
_FORECAST_BY: Final = {
    "learned": "what answers like it got",
    "prior": "the engine's own histogram, while kvguard knows too few answers",
    "cap": "what the request itself allows",
}

_EXAMPLE = """examples:
  kvguard explain request.json
  echo '{"prompt": "hi", "max_tokens": 1024}' | kvguard explain --url http://kvguard:9090
  kvguard explain request.json --model llama-3.1-8b --capacity-tokens 60000 --usage 0.8"""


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help="what would happen to a request, and why, without sending it",
        description="What would happen to a request, and why. Nothing is forwarded or reserved.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("body", nargs="?", default="-", metavar="BODY", help="file with the request; - reads stdin (-)")
    parser.add_argument("--url", help=f"admin port of a running kvguard ({URL})")
    parser.add_argument(
        "--route",
        help="path of the route; default by the body: messages are a chat, input a response, all else a completion",
    )
    parser.add_argument("--opt-out", action="store_true", help="as if sent with x-kvguard-degrade: none")
    parser.add_argument(
        "--header",
        action="append",
        metavar="NAME:VALUE",
        default=[],
        help="a header of the request, believed as if a trusted proxy had sent it; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="the whole answer")
    offline = parser.add_argument_group("without a running kvguard")
    offline.add_argument("--config", type=Path, metavar="FILE", help="settings file")
    offline.add_argument("--model", metavar="CONFIG", help="config.json, a directory with one, or a preset")
    offline.add_argument("--usage", type=float, metavar="RATIO", help="share of the cache others hold, 0 to 1 (0)")
    offline.add_argument("--capacity-blocks", type=int, metavar="N", help="usable KV blocks of the engine")
    offline.add_argument("--capacity-tokens", type=int, metavar="N", help="tokens the engine's KV cache holds")
    offline.add_argument("--block-size", type=int, metavar="N", help=f"tokens of a block ({BLOCK_SIZE})")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    """Print the explanation; the verdict is no matter of the exit code. Raises SettingsError."""
    names = ("config", "model", "usage", "capacity_blocks", "capacity_tokens", "block_size")
    offline = [f"--{name.replace('_', '-')}" for name in names if getattr(chosen, name) is not None]
    if offline and chosen.url is not None:
        raise SettingsError([f"--url asks a running kvguard; {', '.join(offline)} would be ignored"])
    body = _read(chosen.body)
    headers = [*([(OPT_OUT, b"none")] if chosen.opt_out else []), *map(_header, chosen.header)]
    explanation = _offline(chosen, body, headers) if offline else _ask(chosen, body, headers)
    print(json.dumps(explanation, indent=2) if chosen.json else report(explanation))


def _header(text: str) -> tuple[bytes, bytes]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise SettingsError(["--header must be NAME:VALUE"])
    return name.strip().lower().encode(), value.strip().encode()


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise SettingsError([f"{name}: cannot be read: {error.strerror or error}"]) from error


def _ask(chosen: argparse.Namespace, body: bytes, headers: Headers) -> dict[str, Any]:
    """The answer of a running kvguard."""
    base = chosen.url or URL
    base = base if "://" in base else f"http://{base}"
    parameters = {} if chosen.route is None else {"route": chosen.route}
    try:
        with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            answer = client.post(base.rstrip("/") + PATH, params=parameters, content=body, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        hint = "is kvguard running there, on its admin port? Without one: --config, --model, --capacity-tokens"
        raise SettingsError([f"{base}: {str(error) or type(error).__name__}; {hint}"]) from error
    try:
        content: Any = answer.json()
        if answer.is_success and "decision" in content:
            return dict(content)
        error_text = str(content["error"]["message"])
    except (ValueError, KeyError, TypeError):
        error_text = "not an answer of kvguard's admin port"
    raise SettingsError([f"{base}: {answer.status_code}: {error_text}{_hint(chosen, answer.status_code)}"])


def _hint(chosen: argparse.Namespace, status: int) -> str:
    """What may be wrong with a body whose route was guessed."""
    return " (--route names its route, if that was guessed wrong)" if status == 400 and chosen.route is None else ""


def _offline(chosen: argparse.Namespace, body: bytes, headers: Headers) -> dict[str, Any]:
    settings = load_settings(config=chosen.config)
    source = _source(chosen.model)
    clock = ManualClock()
    backends = [_assumed(settings, each, chosen, source) for each in settings.backends]
    controller = Controller(
        backends,
        settings.admission_policy(),
        settings.reject.policy(),
        rng=random.Random(0),
        on_tier_change=lambda _: None,
    )
    controller.governance = governance_of(settings)
    with _counter(settings, source) as counter:
        explainer = Explainer(controller, counter, routes_of(settings), clock, pipeline_policy(settings))
        try:
            return asyncio.run(explainer.explain(body, headers, chosen.route))
        except InvalidRequest as error:
            raise SettingsError([f"invalid request: {error.message}"]) from error
        except UnknownRoute as error:
            raise SettingsError([f"--route {chosen.route}: {error}"]) from error


def _source(model: str | None) -> Source | None:
    try:
        return None if model is None else find_source(model)
    except ValueError as error:
        raise SettingsError([f"--model {error}"]) from error


def _assumed(
    settings: Settings, backend: BackendSettings, chosen: argparse.Namespace, source: Source | None
) -> Backend:
    """A backend of known capacity that others hold `--usage` of."""
    usage = 0.0 if chosen.usage is None else chosen.usage
    if not 0 <= usage <= 1:
        raise SettingsError([f"--usage {usage:g}: must be 0 to 1"])
    layout = None if source is None else _layout(source, backend)
    backend = _sized(settings, _sim_sized(backend, chosen), chosen, layout)
    if backend.context_tokens is None and source is not None:
        backend = backend.model_copy(update={"context_tokens": _context_of(source.config)})
    built, known = build_backend(settings, backend, layout), assumed_facts(backend)
    engine = EngineUsage(
        engine="0",
        capacity_blocks=backend.capacity_blocks,
        block_size=backend.block_size,
        used_ratio=usage,
        ahead=known.ahead,
    )
    built.occupancy.observe(UsageSample(engines=(engine,)), asked_at=0.0)
    return built


def _layout(source: Source, backend: BackendSettings) -> LayoutOf:
    try:
        return layout_from(source.config, backend)
    except ValueError as error:
        raise SettingsError([f"--model {source.origin}: {error}"]) from error


def _sim_sized(backend: BackendSettings, chosen: argparse.Namespace) -> BackendSettings:
    """The embedded engine's capacity is its own, unless another model or capacity is asked about."""
    asked = (chosen.model, chosen.capacity_blocks, chosen.capacity_tokens, chosen.block_size)
    if any(value is not None for value in asked):
        return backend
    backend = simulated(backend)
    if backend.url.startswith(SIMULATED_TGI):
        return _sized_as(backend, context_tokens=tgi_sim(backend.url).max_total_tokens)
    if not backend.url.startswith(SIMULATED_VLLM):
        return backend
    config = vllm_sim(backend.url)
    blocks, size = config.num_gpu_blocks - 1, config.block_size
    return _sized_as(backend, capacity_blocks=blocks, block_size=size, context_tokens=config.max_model_len)


def _sized_as(backend: BackendSettings, **known: int) -> BackendSettings:
    """What the settings leave open as it is known."""
    given = {name: getattr(backend, name) for name in known}
    return backend.model_copy(update={name: given[name] or value for name, value in known.items()})


def _sized(
    settings: Settings, backend: BackendSettings, chosen: argparse.Namespace, layout: LayoutOf | None
) -> BackendSettings:
    faults = [
        f"--{name.replace('_', '-')} must be at least 1"
        for name in ("capacity_blocks", "capacity_tokens", "block_size")
        if (value := getattr(chosen, name)) is not None and value < 1
    ]
    if chosen.capacity_blocks is not None and chosen.capacity_tokens is not None:
        faults.append("--capacity-blocks and --capacity-tokens are two answers to one question")
    if faults:
        raise SettingsError(faults)
    known = assumed_facts(backend)
    size = chosen.block_size or backend.block_size or known.block_size or BLOCK_SIZE
    backend = backend.model_copy(update={"block_size": size})
    blocks = chosen.capacity_blocks or backend.capacity_blocks
    if blocks is None and known.capacity_tokens is not None:
        blocks = usable_blocks(known.capacity_tokens, size)
    if chosen.capacity_tokens is not None:
        policy = build_backend(settings, backend, layout).occupancy.policy.capacity
        blocks = policy.layout(size).rule.reached_blocks(chosen.capacity_tokens)
    if blocks is None:
        raise SettingsError(
            [
                f"{backend.label}: its capacity is not known: give --capacity-tokens N, or --capacity-blocks N with "
                "--block-size N (or backends[].capacity_blocks), or ask a running kvguard with --url"
            ]
        )
    return backend.model_copy(update={"capacity_blocks": blocks})


def _context_of(config: Mapping[str, object]) -> int | None:
    inner = config.get("text_config")
    length = (inner if isinstance(inner, dict) else config).get("max_position_embeddings")
    return length if isinstance(length, int) and length > 0 else None


@contextlib.contextmanager
def _counter(settings: Settings, source: Source | None) -> Iterator[PromptCounter]:
    """The tokenizer of the settings, else the one beside the model, else what usual text has."""
    chosen = settings.tokens
    beside = None if source is None else source.directory
    if chosen.tokenizer is None and beside is not None and (beside / "tokenizer.json").is_file():
        chosen = chosen.model_copy(update={"tokenizer": beside})
    with contextlib.ExitStack() as stack:
        yield build_counter(chosen, None, dict, stack)


def report(explanation: dict[str, Any]) -> str:
    """The explanation for people: the verdict and why, then sizes and room backend by backend."""
    lines = [_verdict(explanation)]
    backends = explanation["backends"]
    chosen = [each for each in backends if each["chosen"]]
    early = chosen and chosen[0]["why"] != explanation["why"]
    if early or not chosen:
        lines += [f"  {line}" for line in explanation["why"]]
    for backend in sorted(backends, key=lambda each: not each["chosen"]):
        lines += ["", *_backend_lines(backend)] if len(backends) > 1 else _backend_lines(backend)[1:]
    lines += [f"note: {note}" for note in explanation["notes"]]
    return "\n".join(lines)


def _verdict(explanation: dict[str, Any]) -> str:
    if explanation["decision"] == "read":
        return f"pass to {explanation['backend']}: unchanged" if explanation["backend"] else "answered by kvguard"
    where = f" on {explanation['backend']}" if explanation["backend"] else ""
    if explanation["decision"] != "refuse":
        changes = ";".join(map(str, explanation["changes"])) or "unchanged"
        return f"{explanation['decision']}{where}, tier {explanation['tier']}: {changes}"
    retry = "never retry"
    if explanation["retry_after_seconds"] is not None:
        least, most = explanation["retry_after_seconds"]
        retry = f"Retry-After {least:g} to {most:g} s"
    return f"refuse{where}, tier {explanation['tier']}: {explanation['status']} {explanation['reason']}, {retry}"


def _backend_lines(backend: dict[str, Any]) -> list[str]:
    decision = "" if backend["chosen"] else f"  (not chosen: {backend['decision']})"
    lines = [f"{backend['backend']}{decision}", *(f"  {line}" for line in backend["why"]), *_sizes(backend)]
    if backend["capacity"] is None:
        return [*lines, "  capacity   not known"]
    blocks, capacity, headroom = (backend[name] for name in ("blocks", "capacity", "headroom"))
    extra = f", {blocks['prefill_extra']} more while it is computed" if blocks["prefill_extra"] else ""
    shared = f", {backend['shared_blocks']} of them shared" if backend["shared_blocks"] else ""
    holds = f"{blocks['prompt']} for the prompt{shared}{extra}, {blocks['reserved']} at full length"
    size = _gib(backend["bytes"]["reserved"]) if backend["bytes"] else ""
    holds_tokens = "" if capacity["tokens"] is None else f", {capacity['tokens']} tokens"
    pool = f"{capacity['blocks']} blocks{holds_tokens}{_gib(capacity['bytes'])}"
    room = f"{headroom['below_reject_blocks']} blocks below REJECT, {headroom['free_blocks']} free"
    return [
        *lines,
        f"  blocks     {holds}{size}",
        f"  capacity   {pool}; {room}",
        *_ratios(backend["ratios"]),
    ]


def _sizes(backend: dict[str, Any]) -> list[str]:
    tokens, sequences, output = (backend[name] for name in ("tokens", "sequences", "output"))
    headroom = f", {tokens['slack']} headroom" if tokens["slack"] else ""
    total = f"{backend['footprint_tokens']} in all"
    shape = "1"
    if sequences["total"] != 1:
        many = f"{sequences['copies']} {'beams' if sequences['beams'] else 'copies'}"
        shape = f"{sequences['total']} ({sequences['prompts']} x {many})"
    prompt = f"{tokens['prompt_sum']} prompt ({_counted(tokens)}){headroom}"
    if output["cap"] == 0:
        return [f"  tokens     {prompt}, no output, {total}", f"  sequences  {shape}"]
    cap = "no cap" if output["cap"] is None else f"cap {output['cap']}"
    expected = f"{output['expected']} expected output ({cap})"
    forecast = f"{output['forecast']} output, by {_FORECAST_BY[output['forecast_source']]}"
    return [f"  tokens     {prompt}, {expected}, {total}", f"  forecast   {forecast}", f"  sequences  {shape}"]


def _counted(tokens: dict[str, Any]) -> str:
    """Who counted; with headroom for an exact count only pictures and the like, or templates, are estimated."""
    if tokens["source"] == CountSource.LEARNED.value:
        return f"estimated: {tokens['source']}"
    media = "; parts it cannot count estimated" if tokens["estimated"] else ""
    return f"counted: {tokens['source']}{media}"


def _ratios(ratios: dict[str, Any]) -> list[str]:
    names = {"without": "now", "with": "as sent", "admitted": "degraded"}
    shown = {names[which]: values for which, values in ratios.items()}
    if shown.get("degraded") == shown["as sent"]:
        del shown["degraded"]
    return [
        f"  {name:<11}{', '.join(f'{n} {value:.3f}' for n, value in values.items())}" for name, values in shown.items()
    ]


def _gib(size: object) -> str:
    return f", {size / 2**30:.2f} GiB" if isinstance(size, int) else ""
