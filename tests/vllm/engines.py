"""The real engines of a session, each started once.

A start is half a minute of one core, nearly all of it imports. So they start one after another, beside the tests that
need none of them or an earlier one; `conftest.py` orders the tests to match. Another engine is another row of
`ENGINES` and a fixture of that name.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.vllm.public_models import CONTEXT_TOKENS, TOKENIZERS, write_public_model
from tests.vllm.server import ROOT, VllmServer, last_cpu

TINY = ROOT / ".models" / "tiny"
BLOCK_TOKENS = 32
STEP_TOKENS = 256

# Without hardware for it bfloat16 takes twice the time, and few tests depend on the precision.
QUICK = ("--dtype", "float32")
# Tools that a model may call as it likes.
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
# The routes that take and give token ids, and a chat template with the request.
TOKENS = ("--enable-scale-out", "--trust-request-chat-template")


def _serving(log: Path) -> VllmServer:
    """128 blocks, so that a few long requests fill the cache."""
    return VllmServer(
        TINY,
        num_blocks=128,
        block_size=BLOCK_TOKENS,
        extra_args=(*QUICK, *TOOLS, *TOKENS),
        engine_cpus=last_cpu(),
        log_path=log,
    )


def _pooling(log: Path) -> VllmServer:
    """The same model, asked for vectors instead of texts."""
    return VllmServer(
        TINY,
        num_blocks=128,
        block_size=BLOCK_TOKENS,
        extra_args=(*QUICK, "--runner", "pooling", "--convert", "embed"),
        engine_cpus=last_cpu(),
        log_path=log,
    )


def _public(name: str) -> Callable[[Path], VllmServer]:
    """A public tokenizer before layers of another kind each, with as many blocks as fit into the engine's memory."""

    def make(log: Path) -> VllmServer:
        return VllmServer(
            write_public_model(name, ROOT / ".models" / name),
            num_blocks=None,
            block_size=BLOCK_TOKENS,
            max_model_len=CONTEXT_TOKENS,
            extra_args=(*TOKENS, "--max-num-batched-tokens", str(STEP_TOKENS)),
            engine_cpus=last_cpu(),
            log_path=log,
        )

    return make


# Fixture, or public tokenizer -> engine, in the order in which they start.
ENGINES: dict[str, Callable[[Path], VllmServer]] = {
    "vllm_server": _serving,
    "pooling_server": _pooling,
    **{name: _public(name) for name in TOKENIZERS},
}


class Engines:
    """Engines that were begun, in that order; those that run are stopped with it."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._starter = ThreadPoolExecutor(max_workers=1)
        self._starting: dict[str, Future[VllmServer]] = {}
        self._running = ExitStack()

    def begin(self, names: Sequence[str]) -> None:
        """Let these start once those begun before them are up."""
        for name in names:
            if name not in self._starting:
                self._starting[name] = self._starter.submit(self._start, name)

    def running(self, name: str) -> VllmServer:
        """The engine, once it is up."""
        self.begin([name])
        return self._starting[name].result()

    def stop(self) -> None:
        self._starter.shutdown(cancel_futures=True)
        self._running.close()

    def _start(self, name: str) -> VllmServer:
        return self._running.enter_context(ENGINES[name](self._logs / f"{name}.log"))
