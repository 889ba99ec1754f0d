"""TGI's batcher and its shard, one call of `step` per forward pass.

Rules, as in TGI's router and its block allocator:
  a request reserves blocks for its prompt and all it may generate, less one token, before it may prefill, and holds
  them to its end: nothing grows, nothing is preempted;
  from 3.1.1 on no more than 1024 new tokens are reserved at once, from 3.0.0 on so where no cap was named: when they
  are used up the request goes to the back of the queue with what it has as its prompt, and reserves as much again;
  where no cap was named the last piece is what is left of the context;
  the queue is first come, first served: the first that does not fit in blocks or in the prefill budget ends the scan.
No clock, no I/O, no asyncio: a step says how long it takes and the caller lets that time pass.
"""

import math
import random
from collections import Counter, deque
from dataclasses import dataclass, field

from kvguard.simulator.blocks import BlockPool
from kvguard.simulator.engine import MEAN_OUTPUT_TOKENS, OUTPUT_SIGMA, FinishReason, SimToken, StepResult
from kvguard.simulator.tgi_config import TgiSimConfig

PIECE_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiRequest:
    """One generation. `max_new_tokens` is the resolved cap, `named` whether the client set it.

    `output_tokens` is the length at which it would stop by itself; None draws it.
    """

    prompt_tokens: int
    max_new_tokens: int
    named: bool = True
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiStats:
    """Gauges and counters as of a finished step. Of the histograms every value is kept, with how often it came."""

    reserved_tokens: int = 0
    running: int = 0
    waiting: int = 0
    prefills: int = 0
    decodes: int = 0
    finished: int = 0
    failed: int = 0
    dropped: int = 0
    crashes: int = 0
    input_lengths: Counter[int] = field(default_factory=Counter)
    max_new_tokens: Counter[int] = field(default_factory=Counter)
    generated: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    """A request on its way; `prompt_tokens` grow with every piece, `piece_left` is reserved and not used yet."""

    sequence_id: int
    prompt_tokens: int
    request: TgiRequest
    output_tokens: int
    generated: int = 0
    piece_left: int = 0
    gone: bool = False


class TgiEngine:
    """One shard and the queue before it."""

    def __init__(self, config: TgiSimConfig) -> None:
        self._config = config
        self._pool = BlockPool(config.usable_blocks + 1)
        self._random = random.Random(config.seed)
        self._next_id = 0
        self._queue: deque[_Entry] = deque()
        self._running: list[_Entry] = []
        self._counts: Counter[str] = Counter()
        self._input_lengths: Counter[int] = Counter()
        self._max_new_tokens: Counter[int] = Counter()
        self._generated: Counter[int] = Counter()

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._queue)

    @property
    def unfinished(self) -> int:
        return len(self._running) + len(self._queue)

    def submit(self, request: TgiRequest) -> int:
        """Queue a generation and return its id. Raises ValueError for one the router would not let in."""
        if request.prompt_tokens < 1 or request.max_new_tokens < 1:
            raise ValueError(f"a generation needs a prompt and a cap of at least one token: {request}")
        if self._blocks(request.prompt_tokens, request) > self._pool.usable:
            raise ValueError(f"it never fits: {request}")
        drawn = self._drawn()
        wanted = drawn if request.output_tokens is None else max(1, request.output_tokens)
        entry = _Entry(
            sequence_id=self._next_id,
            prompt_tokens=request.prompt_tokens,
            request=request,
            output_tokens=wanted,
        )
        self._next_id += 1
        self._enqueue(entry)
        return entry.sequence_id

    def abort(self, sequence_id: int) -> bool:
        """The client has left: a running request goes with its next token, a queued one when it is looked at."""
        for entry in (*self._running, *self._queue):
            if entry.sequence_id == sequence_id and not entry.gone:
                entry.gone = True
                return True
        return False

    def step(self) -> StepResult:
        """Let in what fits, compute its prompts and a token of everything; an idle engine does nothing in no time."""
        if not self.has_work:
            return StepResult()
        before = list(self._running)
        admitted = self._let_in()
        prefill = sum(entry.prompt_tokens for entry in admitted)
        self._counts["prefills"] += bool(admitted)
        self._counts["decodes"] += bool(before)
        if 0 < self._config.prefill_limit_tokens < prefill:
            return self._crash()
        config = self._config
        seconds = config.step_base_seconds + config.step_seconds_per_sequence * len(self._running)
        return StepResult(
            seconds=seconds + config.prefill_seconds_per_token * prefill,
            scheduled_tokens=prefill + len(before),
            tokens=tuple(token for entry in list(self._running) if (token := self._sample(entry)) is not None),
            admitted=tuple(entry.sequence_id for entry in admitted),
        )

    def stats(self) -> TgiStats:
        """Everything the server can tell; the histograms are copies."""
        return TgiStats(
            reserved_tokens=self._pool.used * self._config.block_size,
            running=len(self._running),
            waiting=len(self._queue),
            prefills=self._counts["prefills"],
            decodes=self._counts["decodes"],
            finished=self._counts["finished"],
            failed=self._counts["failed"],
            dropped=self._counts["dropped"],
            crashes=self._counts["crashes"],
            input_lengths=self._input_lengths.copy(),
            max_new_tokens=self._max_new_tokens.copy(),
            generated=self._generated.copy(),
        )

    def _drawn(self) -> int:
        location = math.log(MEAN_OUTPUT_TOKENS) - OUTPUT_SIGMA**2 / 2
        return max(1, round(self._random.lognormvariate(location, OUTPUT_SIGMA)))

    def _enqueue(self, entry: _Entry) -> None:
        entry.piece_left = self._piece(entry.prompt_tokens, entry.request)
        self._input_lengths[entry.prompt_tokens] += 1
        self._max_new_tokens[entry.piece_left] += 1
        self._queue.append(entry)

    def _in_pieces(self, request: TgiRequest) -> bool:
        release = self._config.release
        return release >= (3, 1, 1) or (release >= (3, 0, 0) and not request.named)

    def _piece(self, prompt_tokens: int, request: TgiRequest) -> int:
        """New tokens reserved at once after this prompt."""
        if not self._in_pieces(request):
            return request.max_new_tokens
        cap = request.max_new_tokens if request.named else self._config.max_total_tokens - prompt_tokens
        return min(cap, PIECE_TOKENS)

    def _blocks(self, prompt_tokens: int, request: TgiRequest) -> int:
        return self._config.blocks(prompt_tokens=prompt_tokens, new_tokens=self._piece(prompt_tokens, request))

    def _let_in(self) -> list[_Entry]:
        admitted: list[_Entry] = []
        budget = self._config.max_batch_prefill_tokens
        while self._queue:
            entry = self._queue[0]
            if entry.gone:
                self._queue.popleft()
                self._counts["dropped"] += 1
                continue
            blocks = self._blocks(entry.prompt_tokens, entry.request)
            if entry.prompt_tokens > budget or not self._pool.grow(entry.sequence_id, blocks):
                break
            budget -= entry.prompt_tokens
            admitted.append(self._queue.popleft())
        self._running += admitted
        return admitted

    def _sample(self, entry: _Entry) -> SimToken | None:
        """The next token; None for somebody who has left."""
        if entry.gone:
            self._leave(entry)
            self._counts["dropped"] += 1
            return None
        position = entry.generated
        entry.generated += 1
        entry.piece_left -= 1
        reason = None
        if entry.generated == entry.output_tokens:
            reason = FinishReason.STOP
        elif not entry.piece_left:
            reason = self._at_the_end_of_a_piece(entry)
        if reason is not None:
            self._leave(entry)
            self._counts["finished"] += 1
            self._generated[entry.generated] += 1
        return SimToken(sequence_id=entry.sequence_id, position=position, finish_reason=reason)

    def _at_the_end_of_a_piece(self, entry: _Entry) -> FinishReason | None:
        """Queue again for the next piece; the answer ends where it has all it may, or where that would not fit."""
        request, grown = entry.request, entry.request.prompt_tokens + entry.generated
        complete = not self._in_pieces(request) or entry.generated >= request.max_new_tokens
        longest = self._config.max_total_tokens - self._piece(grown, request)
        if complete or grown > min(longest, self._config.max_input_tokens):
            return FinishReason.LENGTH
        self._leave(entry)
        entry.prompt_tokens = grown
        self._enqueue(entry)
        return None

    def _leave(self, entry: _Entry) -> None:
        self._running.remove(entry)
        self._pool.release(entry.sequence_id)

    def _crash(self) -> StepResult:
        """Out of memory: everything there is fails, and the shard is away for a while."""
        lost = [*self._running, *self._queue]
        for entry in list(self._running):
            self._leave(entry)
        self._queue.clear()
        self._counts["crashes"] += 1
        self._counts["failed"] += len(lost)
        failed = tuple(entry.sequence_id for entry in lost)
        return StepResult(seconds=self._config.restart_seconds, failed=failed)
