"""The `kvguard` command."""

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import yaml

from kvguard import __version__
from kvguard.bootstrap import Service, running
from kvguard.clock import SystemClock
from kvguard.completion import add_parser as add_completion
from kvguard.engines.kind import EngineKind
from kvguard.errors import SettingsError
from kvguard.estimate import command as estimate
from kvguard.explain import add_parser as add_explain
from kvguard.lifecycle import Farewell
from kvguard.policies import config_hash
from kvguard.reload import SettingsFile
from kvguard.replay import add_parser as add_replay
from kvguard.settings import Settings
from kvguard.sources import DEFAULT_FILE, load_settings, worker_faults
from kvguard.status import add_parser as add_status
from kvguard.telemetry.log import background_logging
from kvguard.trial import find_faults

EXIT_CONFIG = 2
_ADDRESSES = (
    "model server: http(s)://host:port (vLLM), dns+http://name:port (one at each address), tgi+ before either (TGI), "
    "sim:// or sim+tgi://; repeatable"
)


_AS_WRITTEN = argparse.RawDescriptionHelpFormatter
_SOURCES = """\
settings come from, each over the next: options, environment variables, the file, defaults.
  KVGUARD_TIERS__TRIM_AT=0.6 is tiers.trim_at; two underscores nest. See docs/configuration.md.
"""
_SERVING = f"""\
{_SOURCES}
signals:
  SIGHUP   reads the settings file anew
  SIGTERM  goes on as usual for listen.prestop_seconds, then refuses new requests, and ends with the last answer or
           after listen.drain_seconds
  SIGINT   does so without the first wait; a second signal of either kind ends at once

exit status: 0 after a signal, 2 for faults in the settings, which are all listed

examples:
  kvguard serve --backend http://vllm:8000
  kvguard serve --backend dns+http://vllm-headless:8000 --config /etc/kvguard/kvguard.yaml
  kvguard serve                       in front of the embedded engine, to try it out
"""
_CHECKING = f"""\
{_SOURCES}
exit status: 0 when there is no fault, else 2

examples:
  kvguard check-config --config /etc/kvguard/kvguard.yaml
  kvguard check-config --backend http://vllm:8000 > kvguard.yaml
"""


def main(arguments: list[str] | None = None) -> None:
    """Run a subcommand. Exits with 2 when the configuration has faults, after listing all of them."""
    chosen = _parser().parse_args(arguments)
    try:
        chosen.run(chosen)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SettingsError as error:
        for fault in error.faults:
            print(f"kvguard: {fault}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    except KeyboardInterrupt:
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvguard", description="Admission control for LLM servers, by KV cache.")
    parser.add_argument("--version", action="version", version=f"kvguard {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve", help="run the proxy", description="Run the proxy.", epilog=_SERVING, formatter_class=_AS_WRITTEN
    )
    _add_settings(serve)
    serve.add_argument("--workers", type=int, metavar="N", help="refused unless 1: scale with replicas")
    serve.set_defaults(run=_serve)
    check = commands.add_parser(
        "check-config",
        help="list every fault, or print the settings in force",
        description="List every fault of the settings, or print those in force as a file that gives the same.",
        epilog=_CHECKING,
        formatter_class=_AS_WRITTEN,
    )
    _add_settings(check)
    check.set_defaults(run=_check, workers=None)
    estimate.add_parser(commands)
    add_explain(commands)
    add_replay(commands)
    add_status(commands)
    add_completion(commands, parser)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", action="append", metavar="URL", help=_ADDRESSES)
    parser.add_argument("--host", metavar="ADDRESS", help="address to listen on (0.0.0.0)")
    parser.add_argument("--port", type=int, metavar="PORT", help="traffic port (8080)")
    parser.add_argument("--admin-port", type=int, metavar="PORT", help="metrics and health port (9090)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (kvguard.yaml if there is one)")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="least level that is logged (info)"
    )


def _settings(chosen: argparse.Namespace) -> Settings:
    listen = {"host": chosen.host, "port": chosen.port, "admin_port": chosen.admin_port}
    flags: dict[str, Any] = {
        "listen": {name: value for name, value in listen.items() if value is not None},
        "backends": [{"url": url} for url in chosen.backend or ()],
        "log": {"level": chosen.log_level} if chosen.log_level else {},
    }
    faults = worker_faults(chosen.workers)
    try:
        settings = load_settings(config=chosen.config, flags={name: value for name, value in flags.items() if value})
    except SettingsError as error:
        raise error.beside(faults) from error
    if faults:
        raise SettingsError(faults, sound=settings)
    return settings


def _checked(chosen: argparse.Namespace) -> Settings:
    """The settings; where they have faults, those of what would be built from the rest are told as well."""
    try:
        return _settings(chosen)
    except SettingsError as error:
        further: tuple[str, ...] = ()
        if isinstance(error.sound, Settings):
            try:
                find_faults(error.sound, but=error.doubtful)
            except SettingsError as found:
                further = found.faults
        raise SettingsError([*error.faults, *further]) from error


def _check(chosen: argparse.Namespace) -> None:
    settings = _checked(chosen)
    find_faults(settings)
    print(f"# settings in force, hash {config_hash(settings)}")
    print(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), end="")


def _serve(chosen: argparse.Namespace) -> None:
    if chosen.config is None and DEFAULT_FILE.exists():
        # As if it had been named: a file that was there at the start and is gone later is no return to the defaults.
        chosen.config = DEFAULT_FILE
    settings = _checked(chosen)
    _raise_file_limit()
    with (
        background_logging(settings.log.level, sys.stdout, settings.log.format) as logger,
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        file = SettingsFile(path=chosen.config or DEFAULT_FILE, load=functools.partial(_settings, chosen))
        try:
            runner.run(_run(settings, file, logger))
        except SettingsError:
            find_faults(settings)  # all of them, where the first was only what was built first
            raise


def _raise_file_limit() -> None:
    """Every client and every connection to a backend takes a file; the soft limit is often far below the hard one."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # a sandbox may not allow it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(settings: Settings, file: SettingsFile, logger: logging.Logger) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    signals: list[signal.Signals] = []

    def received(number: signal.Signals) -> None:
        signals.append(number)
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)
    async with running(settings, clock=SystemClock(), rng=random.Random(), logger=logger, file=file) as service:
        if service.reloader is not None and hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, service.reloader.hurry)
        waiting = {asyncio.create_task(service.members.ready.wait()), asyncio.create_task(stop.wait())}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            print(_banner(service), file=sys.stderr, flush=True)
        await stop.wait()
        for task in waiting:
            task.cancel()
        await service.lifecycle.leave(_farewell(settings, signals[0]), hurry)


def _farewell(settings: Settings, number: signal.Signals) -> Farewell:
    """How to end on this signal. Whoever interrupts at a terminal has no load balancer that would have to notice."""
    listen = settings.listen
    prestop = 0.0 if number is signal.SIGINT else listen.prestop_seconds
    return Farewell(prestop_seconds=prestop, drain_seconds=listen.drain_seconds)


_APIS = {EngineKind.VLLM: "OpenAI and Anthropic APIs", EngineKind.TGI: "TGI's own API and OpenAI's"}


def _example(kind: EngineKind, base: str, model: str) -> list[str]:
    """A command that asks for a short answer."""
    if kind is EngineKind.TGI:
        path, body = "/generate", '{"inputs": "Once upon a time", "parameters": {"max_new_tokens": 32}}'
    else:
        path, body = "/v1/completions", f'{{"model": "{model}", "prompt": "Once upon a time", "max_tokens": 32}}'
    return [f"  curl -i {base}{path} -H 'content-type: application/json' \\", f"    -d '{body}'"]


def _banner(service: Service) -> str:
    base, admin = f"http://127.0.0.1:{service.port}", f"http://127.0.0.1:{service.admin_port}"
    lines = [f"kvguard {__version__} is up.", ""]
    for backend in service.controller.backends:
        capacity = backend.occupancy.capacity
        size = f"not known yet: {service.members.troubles().get(backend.name, 'no capacity')}"
        if capacity is not None:
            size = f"{capacity.blocks} KV blocks of {capacity.rule.block_size} tokens"
        lines.append(f"  backend   {backend.name}: {size}")
    model = next((name for backend in service.controller.backends for name in sorted(backend.models)), "MODEL")
    lines += [
        f"  traffic   {base}  ({_APIS[service.kind]})",
        f"  metrics   {admin}/metrics   health {admin}/healthz   ready {admin}/readyz",
        "",
        "Send a request:",
        *_example(service.kind, base, model),
        "Watch the cache fill:",
        f"  curl -s {admin}/metrics | grep -E '^kvguard_(tier|kv_usage_ratio)'",
    ]
    return "\n".join(lines)
