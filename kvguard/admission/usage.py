"""What one scrape of an engine says, in the engine's own unit. A value that was not there is None, never 0."""

from dataclasses import dataclass

from kvguard.admission.blocks import Ahead

# Upper bounds and how many answers were no longer, both rising; the last bound is often infinite.
LengthBuckets = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUsage:
    """One engine (one data-parallel rank) at the moment of a scrape.

    `capacity_blocks` counts usable blocks (vLLM: without the null block), `capacity_tokens` the tokens the engine says
    they hold. `block_size` is the tokens of a block of full attention, `pool_block_size` those the pool was set up
    with; they differ for models with layers of several sizes. `used_ratio` is the gauge, 0..1.
    `waiting_for_capacity` is the part of `waiting` that waits for KV blocks. `awake` is False while the engine is in
    sleep mode. Counters run since engine start; `steps_total` counts what was computed, where tokens are counted for
    ended requests only, and `generation_lengths` answers by their tokens (vLLM `request_generation_tokens`, TGI
    `tgi_request_generated_tokens`). `ahead` is how it reserves room, where it does so before an answer begins;
    `prefix_caching` says whether sequences that begin alike share blocks.
    """

    engine: str
    capacity_blocks: int | None = None
    capacity_tokens: int | None = None
    block_size: int | None = None
    pool_block_size: int | None = None
    used_ratio: float | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_for_capacity: int | None = None
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    steps_total: float | None = None
    generation_lengths: LengthBuckets | None = None
    ahead: Ahead | None = None
    prefix_caching: bool | None = None
    awake: bool | None = None

    @property
    def queue(self) -> int | None:
        """Requests that wait for blocks; all that wait where it does not say for what."""
        return self.waiting if self.waiting_for_capacity is None else self.waiting_for_capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSample:
    """Every engine one backend reports, ordered by label. Empty when the exposition named none.

    `started_at` tells one server from another: Unix time at which its process started, None where it does not say.
    """

    engines: tuple[EngineUsage, ...] = ()
    started_at: float | None = None

    @property
    def unfinished(self) -> int | None:
        """Sequences that run or wait, over all engines; None where one does not say."""
        counts = [(engine.running, engine.waiting) for engine in self.engines]
        known = [running + waiting for running, waiting in counts if running is not None and waiting is not None]
        return sum(known) if counts and len(known) == len(counts) else None

    @property
    def queue(self) -> int | None:
        """Requests that wait for blocks, over all engines; None where no engine says."""
        queues = [engine.queue for engine in self.engines if engine.queue is not None]
        return sum(queues) if queues else None
