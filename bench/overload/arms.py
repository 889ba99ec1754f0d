"""Ways of serving, by name: the engine as it is, behind its own limit, past a rival's gate, or behind kvguard."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from bench.overload.gates import BudgetGate, ClairvoyantGate, Gate, SaturationGate
from bench.overload.servers import kvguard, observed
from bench.overload.slices import BUDGET, CEILING, COLD, KVGUARD, LIMITED, SATURATION, UNLEARNED
from tests.vllm.server import VllmServer

MakeGate = Callable[[], Gate]
BELIEVES_NOTHING = {"KVGUARD_FORECAST__MIN_ANSWERS": str(10**9)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Where clients send and past which gate, and the engine behind it.

    Without a url a kvguard is started for each visit, with nothing learned. `native_limit` is the engine's own.
    """

    name: str
    url: str | None
    engine: VllmServer
    new_gate: MakeGate = Gate
    config: Path | None = None
    native_limit: int | None = None

    @contextlib.asynccontextmanager
    async def reached(self) -> AsyncIterator[tuple[str, Gate]]:
        """The url to send to and a gate that knows nothing of earlier visits, for one visit."""
        async with contextlib.AsyncExitStack() as stack:
            gate, url = self.new_gate(), self.url
            if url is None:
                url = await stack.enter_async_context(kvguard(self.name, self.engine.url, self.config))
            if isinstance(gate, SaturationGate):
                await stack.enter_async_context(observed(gate, self.engine.url))
            yield url, gate


def gates(engine: VllmServer) -> dict[str, MakeGate]:
    """The rules that are decided before sending, for an engine of this capacity."""
    cache = engine.cache_config()
    blocks, block_size = int(cache["num_gpu_blocks"]) - 1, int(cache["block_size"])  # vLLM keeps one for itself
    return {
        SATURATION: SaturationGate,
        BUDGET: lambda: BudgetGate(capacity_tokens=blocks * block_size),
        CEILING: lambda: ClairvoyantGate(capacity_blocks=blocks, block_size=block_size),
    }


def limited_arm(server: VllmServer, limit: int) -> Arm:
    """The engine behind its own admission control."""
    return Arm(name=LIMITED, url=server.url, engine=server, native_limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """The arms that are asked for. `configs` are the warm kvguards, by name; None is the default settings."""

    names: tuple[str, ...]
    configs: dict[str, Path | None]

    @contextlib.asynccontextmanager
    async def standing(self, bare: VllmServer, limited: Arm | None) -> AsyncIterator[list[Arm]]:
        """The arms while their kvguards run."""
        async with contextlib.AsyncExitStack() as stack:
            urls = {
                name: await stack.enter_async_context(self._kvguard(name, bare))
                for name in self.names
                if name == UNLEARNED or name in self.configs
            }
            known = gates(bare)
            arms = [
                Arm(name=name, url=urls.get(name, bare.url), engine=bare, new_gate=known.get(name, Gate))
                for name in self.names
            ]
            special = {LIMITED: limited, COLD: Arm(name=COLD, url=None, engine=bare, config=self.configs.get(KVGUARD))}
            yield [special.get(arm.name) or arm for arm in arms]

    def _kvguard(self, name: str, bare: VllmServer) -> contextlib.AbstractAsyncContextManager[str]:
        if name == UNLEARNED:
            return kvguard(name, bare.url, self.configs.get(KVGUARD), **BELIEVES_NOTHING)
        return kvguard(name, bare.url, self.configs[name])
