"""The answer as text for people: three digits and binary units; `--json` has the exact integers."""

from collections.abc import Iterator, Sequence
from typing import Final

from kvguard.admission.blocks import BlockRule
from kvguard.engines.kind import EngineKind
from kvguard.estimate.capacity import Capacity, Entry, Fit, Limit
from kvguard.estimate.describe import describe
from kvguard.estimate.model import Memories, Model
from kvguard.estimate.options import Options
from kvguard.estimate.sizes import format_size

_LIMITS: Final = {
    Limit.KV_CACHE: "KV cache",
    Limit.MAX_NUM_SEQS: "--max-num-seqs",
    Limit.ONE_DOES_NOT_FIT: "one does not fit",
    Limit.TOO_LONG: "longer than max_position_embeddings",
}
_ENGINES: Final = {EngineKind.VLLM: "vLLM", EngineKind.TGI: "TGI"}


def render(model: Model, options: Options) -> str:
    """One CONFIG."""
    lines = [f"{model.name} ({model.origin}): {describe(model.spec)}", *_taxes(model), ""]
    lines += _maps(model, options)
    if model.memories is not None:
        lines += ["", *_capacity(model, model.memories, options)]
    remarks = [f"bound: {text}" for text in model.spec.assumptions] + [f"note: {text}" for text in model.notes]
    return "\n".join([*lines, *remarks])


def _taxes(model: Model) -> Iterator[str]:
    stages = model.placed.stages
    growth = max(stage.bytes_per_token() for stage in stages)
    settled = max(stage.settled_bytes_per_token() for stage in stages)
    state = max(stage.state_bytes() for stage in stages)
    encoder = max(stage.bytes_per_encoder_token() for stage in stages)
    past = f"; {_exact(settled)} past the windows" if settled != growth else ""
    yield f"  token tax   {_exact(growth)} per token and sequence{_each(model)}{past}"
    if state:
        yield f"  state       {_exact(state)} per sequence{_each(model)}, whatever its length"
    if encoder:
        yield f"  encoder     {_exact(encoder)} per encoder token{_each(model)}, not in the figures below"
    pool = model.placed.pool
    if pool is not None:
        yield f"  block       {_blocks(pool.rule)}, {_exact(pool.block_bytes)}{_each(model)}"


def _blocks(rule: BlockRule) -> str:
    """Block size, and what a growing sequence takes of it."""
    sizes = sorted({group.block_size for group in rule.groups})
    tokens = f"{' or '.join(f'{size:,}' for size in sizes)} tokens of a group of layers" if sizes else "one state"
    groups = sum(group.count for group in rule.groups)
    return tokens if groups + rule.state_blocks > 1 or not sizes else f"{sizes[0]:,} token{'s' if sizes[0] > 1 else ''}"


def _each(model: Model) -> str:
    return " on each GPU" if model.placed.gpus > 1 else ""


def _maps(model: Model, options: Options) -> Iterator[str]:
    """One GPU's share with the blocks, and over all GPUs where there are several."""
    gpus = model.placed.gpus
    where = f"on each of {gpus} GPUs" if gpus > 1 else "on one GPU"
    beams = f", {options.beams} beams a request that share nothing" if options.beams > 1 else ""
    blocks = f"blocks as {_ENGINES[options.engine]} holds them"
    yield f"KV cache {where}, by tokens of each request and requests at once{beams}; {blocks}"
    yield from _memory_map(model, options, total=False)
    if gpus > 1:
        yield f"KV cache on all {gpus} GPUs"
        yield from _memory_map(model, options, total=True)


def _memory_map(model: Model, options: Options, *, total: bool) -> list[str]:
    """A row per context, a column per batch; full and windowed side by side where there are windows."""
    windowed = model.placed.windowed
    kinds = (" full", " windowed") if windowed else ("",)
    head = [f"{batch:,} x{kind}" for batch in options.batches for kind in kinds]
    table = [["tokens", *head, *(() if total else ("blocks of 1 x", "in prefill"))]]
    cells = {(entry.batch, entry.context): entry for entry in model.entries}
    for context in options.contexts:
        row = [f"{context:,}"]
        for batch in options.batches:
            entry = cells[batch, context]
            full, held = (entry.total_full_bytes, entry.total_bytes) if total else (entry.full_bytes, entry.bytes)
            row += [format_size(full), format_size(held)] if windowed else [format_size(held)]
        table.append([*row, *(() if total else _block_cells(entry))])
    return _aligned(table)


def _block_cells(entry: Entry) -> tuple[str, str]:
    """Of one request, with all its beams."""
    if entry.blocks is None or entry.peak_blocks is None:
        return "?", "?"
    return f"{entry.blocks // entry.batch:,}", f"{entry.peak_blocks // entry.batch:,}"


def _capacity(model: Model, memories: Memories, options: Options) -> Iterator[str]:
    memory, capacity = memories.memory, memories.capacity
    sums = f"{float(memory.utilization):g} x {format_size(memory.gpu_bytes)}"
    sums += f" - {format_size(capacity.weights_per_gpu_bytes)} weights ({memories.weights.basis})"
    sums += f" - {format_size(memory.overhead_bytes)} overhead" if memory.overhead_bytes else ""
    yield f"Room for KV{_each(model)}: {sums} = {format_size(capacity.kv_budget_bytes)}"
    yield f"  {_holds(capacity)}"
    table = [["tokens", "requests at once", "more stopped by"]]
    table += [[_request(fit), f"{fit.requests:,}", _limit(fit, options)] for fit in capacity.fits]
    yield from _aligned(table, left=2)


def _holds(capacity: Capacity) -> str:
    if capacity.usable_blocks is None:
        return "its blocks are not known"
    longest = capacity.longest_sequence_tokens
    tokens = f"room for one sequence of {longest:,} tokens" if longest is not None else "a sequence stops growing"
    return f"{capacity.blocks:,} blocks, {capacity.usable_blocks:,} of them for requests; {tokens}"


def _request(fit: Fit) -> str:
    request = fit.request
    if request.output is None:
        return f"{request.tokens:,}"
    return f"{request.prompt:,} + {request.output:,}"


def _limit(fit: Fit, options: Options) -> str:
    text = _LIMITS[fit.limit]
    return f"{text} {options.max_num_seqs}" if fit.limit is Limit.MAX_NUM_SEQS else text


def _exact(size: int) -> str:
    return f"{size:,} B ({format_size(size)})" if size >= 1024 else f"{size} B"


def _aligned(table: Sequence[Sequence[str]], *, left: int | None = None) -> list[str]:
    """Columns to the right, those from `left` on to the left."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(width) if left is not None and column >= left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'   '.join(cells)}".rstrip())
    return lines
