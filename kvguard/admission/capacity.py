"""How much a backend's pool holds: what the engine publishes, what an operator says instead, and the model's layout."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvguard.admission.blocks import Ahead, BlockRule, PoolLayout
from kvguard.admission.usage import EngineUsage, UsageSample


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPolicy:
    """What an operator knows about the pool.

    `blocks` and `block_size` override what the engine publishes. `layout_of` lays the model out for the block size the
    pool was set up with; without it all attention counts as full.
    """

    blocks: int | None = None
    block_size: int | None = None
    layout_of: Callable[[int], PoolLayout] | None = None

    def layout(self, block_size: int) -> PoolLayout:
        """The model's layout at this block size."""
        return (self.layout_of or PoolLayout.plain)(block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Usable blocks of the whole pool and of its largest engine, and how sequences fill them.

    `published_tokens` is what the engine says the pool holds. `shares_prefixes` says that sequences which begin alike
    are known to share blocks: one engine with its prefix cache on. Among several each has a cache of its own, and the
    server alone knows which has which request.
    """

    blocks: int
    largest_engine_blocks: int
    layout: PoolLayout
    published_tokens: int | None = None
    shares_prefixes: bool = False

    @property
    def rule(self) -> BlockRule:
        """Blocks a sequence holds."""
        return self.layout.rule

    @property
    def tokens(self) -> int | None:
        """Tokens the pool holds: as the engine says, else of one sequence that fills it; None where none ever does."""
        return self.published_tokens or self.rule.longest_sequence(self.blocks)

    @property
    def bytes(self) -> int | None:
        """Bytes of the pool on one GPU; None without the model's geometry."""
        return None if self.layout.block_bytes is None else self.blocks * self.layout.block_bytes


def overridden(policy: CapacityPolicy) -> Capacity | None:
    """The capacity that is known before any scrape: only one an operator gave in full."""
    if policy.blocks is None or policy.block_size is None:
        return None
    layout = policy.layout(policy.block_size)
    return Capacity(blocks=policy.blocks, largest_engine_blocks=policy.blocks, layout=layout)


def capacity_of(sample: UsageSample, policy: CapacityPolicy) -> Capacity | None:
    """The capacity a scrape shows; None while an engine keeps silent about its own."""
    engines = sample.engines
    blocks = [engine.capacity_blocks for engine in engines if engine.capacity_blocks]
    size = _block_size(engines, policy)
    if size is None or (policy.blocks is None and (not blocks or len(blocks) < len(engines))):
        return None
    total = policy.blocks or sum(blocks)
    tokens = [engine.capacity_tokens for engine in engines if engine.capacity_tokens]
    return Capacity(
        blocks=total,
        largest_engine_blocks=min(total, max(blocks, default=total)),
        layout=_reserving(policy.layout(size), engines[0].ahead if engines else None),
        published_tokens=sum(tokens) if policy.blocks is None and len(tokens) == len(engines) else None,
        shares_prefixes=len(engines) == 1 and engines[0].prefix_caching is True,
    )


def _reserving(layout: PoolLayout, ahead: Ahead | None) -> PoolLayout:
    """The layout under the rule by which the engine reserves; all engines of a backend are alike."""
    return layout if ahead is None else replace(layout, rule=replace(layout.rule, ahead=ahead))


def _block_size(engines: tuple[EngineUsage, ...], policy: CapacityPolicy) -> int | None:
    """A layout starts from the block size of the pool; plain blocks are those of full attention."""
    sizes = [engine.block_size for engine in engines if engine.block_size]
    if policy.layout_of is not None:
        sizes = [engine.pool_block_size for engine in engines if engine.pool_block_size] or sizes
    return policy.block_size or max(sizes, default=None)
