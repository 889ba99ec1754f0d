"""The engine core: continuous batching over a paged KV cache, one call of `step` per engine step.

Rules, as in vLLM's V1 scheduler:
  a token sampled in a step gets its KV in the next one, so KV tokens = prompt + generated - 1;
  blocks are taken as tokens are computed, never in advance: the output cap is not reserved;
  a running sequence without a free block preempts the last of the running list, which loses its blocks, keeps its
  tokens, goes to the head of the waiting queue and is computed again from zero;
  a step with a preemption admits nothing; otherwise the head of the queue is admitted while all blocks for the tokens
  it has now are free, and the first that does not fit ends the scan;
  with prefix caching it first takes the cached blocks it begins with, though never that of its last token, which is
  always computed; a block is cached once its last token is scheduled, so others may share it within the same step.
No clock, no I/O, no asyncio: a step says how long it takes and the caller lets that time pass.
"""

import enum
import math
import random
from collections import deque
from dataclasses import dataclass, field

from kvguard.simulator.blocks import BlockPool, blocks_for
from kvguard.simulator.config import SimConfig

MEAN_OUTPUT_TOKENS = 130.0
OUTPUT_SIGMA = 0.8


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    """One engine sequence. `max_tokens` is the resolved cap: prompt plus cap fits the context.

    `output_tokens` is the length at which the sequence would stop by itself; None draws it. `prefix` has the hashes of
    its leading full blocks as far as they are known, those of its answer included: equal ones say that everything up to
    there is equal.
    """

    prompt_tokens: int
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    output_tokens: int | None = None
    prefix: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimToken:
    """One sampled token; `position` counts from 0 within its sequence's output."""

    sequence_id: int
    position: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did. `tokens` are in the order of the running list; those that `failed` get none any more."""

    seconds: float = 0.0
    scheduled_tokens: int = 0
    tokens: tuple[SimToken, ...] = ()
    admitted: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()

    @property
    def finished(self) -> dict[int, FinishReason]:
        return {token.sequence_id: token.finish_reason for token in self.tokens if token.finish_reason is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Gauges now and counters since start.

    `preemptions` counts events; `preemptions_reported` is what vLLM exports: an event is added only when the
    preempted sequence next produces a token. Prefix cache queries and hits are in tokens, of first admissions only.
    """

    usable_blocks: int
    used_blocks: int = 0
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    preemptions_reported: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    finished_stop: int = 0
    finished_length: int = 0

    @property
    def usage_ratio(self) -> float:
        return self.used_blocks / self.usable_blocks


@dataclass(slots=True, kw_only=True, eq=False)
class _Sequence:
    sequence_id: int
    prompt_tokens: int
    output_tokens: int
    finish_reason: FinishReason
    prefix: tuple[int, ...] = ()
    generated: int = 0
    computed: int = 0
    preempted: bool = False
    unreported_preemptions: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def missing_tokens(self) -> int:
        return self.total_tokens - self.computed

    @property
    def prefilling(self) -> bool:
        return self.generated == 0 or self.missing_tokens > 1


@dataclass(slots=True, kw_only=True)
class _Plan:
    """What one step computes: chunks of tokens per sequence within the token budget."""

    budget: int
    chunks: list[tuple[_Sequence, int]] = field(default_factory=list)
    prefill_tokens: int = 0

    def chunk_of(self, sequence: _Sequence) -> int:
        return min(self.budget, sequence.missing_tokens)

    def add(self, sequence: _Sequence, chunk: int) -> None:
        self.budget -= chunk
        self.chunks.append((sequence, chunk))
        if sequence.prefilling:
            self.prefill_tokens += chunk


class SimEngine:
    """One engine: a block pool, a running list and a waiting queue."""

    def __init__(self, config: SimConfig) -> None:
        self._config = config
        self._pool = BlockPool(config.num_gpu_blocks)
        self._random = random.Random(config.seed)
        self._next_id = 0
        self._running: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()
        self._preemptions = 0
        self._preemptions_reported = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._prefix_cache_queries = 0
        self._prefix_cache_hits = 0
        self._finished = dict.fromkeys(FinishReason, 0)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def unfinished(self) -> int:
        return len(self._running) + len(self._waiting)

    def held_blocks(self, sequence_id: int) -> int:
        return self._pool.held(sequence_id)

    def submit(self, request: SequenceRequest) -> int:
        """Queue one sequence and return its id, the number of sequences submitted before it."""
        if request.prompt_tokens < 1 or request.max_tokens < 1:
            raise ValueError(f"a sequence needs a prompt and a cap of at least one token: {request}")
        if request.prompt_tokens + request.max_tokens > self._config.max_model_len:
            raise ValueError(f"prompt and cap exceed max_model_len={self._config.max_model_len}: {request}")
        output_tokens, reason = self._outcome(request)
        sequence = _Sequence(
            sequence_id=self._next_id,
            prompt_tokens=request.prompt_tokens,
            output_tokens=output_tokens,
            finish_reason=reason,
            prefix=request.prefix if self._config.enable_prefix_caching else (),
        )
        self._next_id += 1
        self._waiting.append(sequence)
        return sequence.sequence_id

    def abort(self, sequence_id: int) -> bool:
        """Forget a sequence and free its blocks; False when it has ended already. No counter counts it."""
        for queue in (self._running, self._waiting):
            for sequence in queue:
                if sequence.sequence_id == sequence_id:
                    queue.remove(sequence)
                    self._pool.release(sequence_id)
                    return True
        return False

    def step(self) -> StepResult:
        """Schedule, compute and sample once; an idle engine does nothing in no time."""
        if not self.has_work:
            return StepResult()
        plan = _Plan(budget=self._config.max_num_batched_tokens)
        preempted = self._schedule_running(plan)
        admitted = () if preempted else self._admit(plan)
        seconds = self._seconds(plan)
        return StepResult(
            seconds=seconds,
            scheduled_tokens=sum(chunk for _, chunk in plan.chunks),
            tokens=self._compute(plan),
            admitted=admitted,
            preempted=preempted,
        )

    def stats(self) -> EngineStats:
        return EngineStats(
            usable_blocks=self._pool.usable,
            used_blocks=self._pool.used,
            running=len(self._running),
            waiting=len(self._waiting),
            preemptions=self._preemptions,
            preemptions_reported=self._preemptions_reported,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_cache_queries=self._prefix_cache_queries,
            prefix_cache_hits=self._prefix_cache_hits,
            finished_stop=self._finished[FinishReason.STOP],
            finished_length=self._finished[FinishReason.LENGTH],
        )

    def _outcome(self, request: SequenceRequest) -> tuple[int, FinishReason]:
        """Output length and why it ends. Draws once per sequence, so the n-th draw belongs to the n-th sequence."""
        location = math.log(MEAN_OUTPUT_TOKENS) - OUTPUT_SIGMA**2 / 2
        drawn = max(1, round(self._random.lognormvariate(location, OUTPUT_SIGMA)))
        wanted = drawn if request.output_tokens is None else max(1, request.output_tokens)
        wanted = max(wanted, request.min_tokens)
        if request.ignore_eos or wanted >= request.max_tokens:
            return request.max_tokens, FinishReason.LENGTH
        return wanted, FinishReason.STOP

    def _schedule_running(self, plan: _Plan) -> tuple[int, ...]:
        preempted: list[int] = []
        index = 0
        while index < len(self._running) and plan.budget > 0:
            sequence = self._running[index]
            chunk = plan.chunk_of(sequence)
            if not self._make_room(sequence, chunk, preempted):
                break
            self._schedule(plan, sequence, chunk)
            index += 1
        return tuple(preempted)

    def _make_room(self, sequence: _Sequence, chunk: int, preempted: list[int]) -> bool:
        """Take the blocks of the next `chunk` tokens, preempting from the tail; False when the tail is `sequence`."""
        if chunk <= -sequence.computed % self._config.block_size:
            return True  # most steps: the last block has room for the next token
        blocks = blocks_for(sequence.computed + chunk, self._config.block_size)
        while not self._pool.grow(sequence.sequence_id, blocks):
            victim = self._preempt_last()
            preempted.append(victim.sequence_id)
            if victim is sequence:
                return False
        return True

    def _preempt_last(self) -> _Sequence:
        victim = self._running.pop()
        self._pool.release(victim.sequence_id)
        victim.computed = 0
        victim.preempted = True
        victim.unreported_preemptions += 1
        self._preemptions += 1
        self._waiting.appendleft(victim)
        return victim

    def _admit(self, plan: _Plan) -> tuple[int, ...]:
        admitted: list[int] = []
        while self._waiting and plan.budget > 0 and len(self._running) < self._config.max_num_seqs:
            sequence = self._waiting[0]
            if not self._begin(sequence):
                break
            self._running.append(self._waiting.popleft())
            chunk = plan.chunk_of(sequence)
            self._pool.grow(sequence.sequence_id, blocks_for(sequence.computed + chunk, self._config.block_size))
            self._schedule(plan, sequence, chunk)
            admitted.append(sequence.sequence_id)
        return tuple(admitted)

    def _begin(self, sequence: _Sequence) -> bool:
        """Skip what is cached of the sequence; False when the blocks for the rest are not free."""
        size, tokens = self._config.block_size, sequence.total_tokens
        shared = self._pool.adopt(
            sequence.sequence_id, sequence.prefix[: (tokens - 1) // size], blocks_for(tokens, size)
        )
        if shared is None:
            return False
        sequence.computed = shared * size
        if self._config.enable_prefix_caching and not sequence.preempted:
            self._prefix_cache_queries += tokens
            self._prefix_cache_hits += sequence.computed
        return True

    def _schedule(self, plan: _Plan, sequence: _Sequence, chunk: int) -> None:
        """Compute the next `chunk` tokens in this step, and cache the blocks they fill."""
        plan.add(sequence, chunk)
        size, computed = self._config.block_size, sequence.computed
        if sequence.prefix and computed % size + chunk >= size:
            filled = sequence.prefix[computed // size : (computed + chunk) // size]
            self._pool.publish(sequence.sequence_id, filled)

    def _seconds(self, plan: _Plan) -> float:
        config = self._config
        per_sequence = config.step_seconds_per_sequence * len(plan.chunks)
        return config.step_base_seconds + per_sequence + config.prefill_seconds_per_token * plan.prefill_tokens

    def _compute(self, plan: _Plan) -> tuple[SimToken, ...]:
        tokens: list[SimToken] = []
        for sequence, chunk in plan.chunks:
            sequence.computed += chunk
            if sequence.missing_tokens == 0:
                tokens.append(self._sample(sequence))
        return tuple(tokens)

    def _sample(self, sequence: _Sequence) -> SimToken:
        position = sequence.generated
        if position == 0:
            self._prompt_tokens += sequence.prompt_tokens
        sequence.generated += 1
        self._generation_tokens += 1
        self._preemptions_reported += sequence.unreported_preemptions
        sequence.unreported_preemptions = 0
        reason = sequence.finish_reason if sequence.generated == sequence.output_tokens else None
        if reason is not None:
            self._running.remove(sequence)
            self._pool.release(sequence.sequence_id)
            self._finished[reason] += 1
        return SimToken(sequence_id=sequence.sequence_id, position=position, finish_reason=reason)
