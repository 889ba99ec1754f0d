"""Ways of serving, by name: the engine as it is, behind its own limit, past a rival's gate, or behind kvguard."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from bench.overload.gates import BudgetGate, ClairvoyantGate, Gate, SaturationGate
from bench.overload.servers import kvguard, observed
from bench.overload.slices import BARE, BUDGET, CEILING, COLD, KVGUARD, LIMITED, SATURATION
from tests.vllm.server import VllmServer

MakeGate = Callable[[], Gate]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """The arms that are asked for. `configs` are the kvguards, by name; None is the default settings."""

    names: tuple[str, ...]
    configs: dict[str, Path | None]

    @contextlib.asynccontextmanager
    async def standing(
        self, bare: VllmServer, limited: VllmServer | None, limit: int | None
    ) -> AsyncIterator[list[Arm]]:
        """The arms while their kvguards run."""
        known = gates(bare)
        async with contextlib.AsyncExitStack() as stack:
            arms = []
            for name in self.names:
                if name == LIMITED:
                    if limited is not None:
                        arms.append(Arm(name=name, url=limited.url, engine=limited, native_limit=limit))
                elif name == COLD:
                    arms.append(Arm(name=name, url=None, engine=bare, config=self.configs.get(KVGUARD)))
                elif name in self.configs:
                    url = await stack.enter_async_context(kvguard(name, bare.url, self.configs[name]))
                    arms.append(Arm(name=name, url=url, engine=bare))
                else:
                    arms.append(
                        Arm(name=name, url=bare.url, engine=bare, new_gate=Gate if name == BARE else known[name])
                    )
            yield arms
