"""The answer as JSON: exact integers. Field names are public."""

from kvguard.estimate.capacity import Entry, Fit
from kvguard.estimate.describe import describe
from kvguard.estimate.model import Memories, Model
from kvguard.estimate.options import Options


def document(model: Model, options: Options) -> dict[str, object]:
    """One CONFIG. Bytes are one GPU's, `total_*` all GPUs'; figures nobody can know are null and `notes` says why."""
    stages, ranks = model.placed.stages, model.placed.tensor_parallel_size
    pool = model.placed.pool
    answer: dict[str, object] = {
        "name": model.name,
        "source": model.origin,
        "model": describe(model.spec),
        "engine": options.engine.value,
        "gpus": model.placed.gpus,
        "max_position_embeddings": model.max_position_embeddings,
        "token_tax_bytes": max(stage.bytes_per_token() for stage in stages),
        "settled_token_tax_bytes": max(stage.settled_bytes_per_token() for stage in stages),
        "state_bytes": max(stage.state_bytes() for stage in stages),
        "encoder_token_bytes": max(stage.bytes_per_encoder_token() for stage in stages),
        "total_token_tax_bytes": ranks * sum(stage.bytes_per_token() for stage in stages),
        "total_settled_token_tax_bytes": ranks * sum(stage.settled_bytes_per_token() for stage in stages),
        "total_state_bytes": ranks * sum(stage.state_bytes() for stage in stages),
        "sequences": f"batch x {options.beams} beams" if options.beams > 1 else "batch",
        "block_size": None if pool is None else pool.rule.block_size,
        "block_bytes": None if pool is None else pool.block_bytes,
        "assumptions": list(model.spec.assumptions),
        "notes": list(model.notes),
        "entries": [_entry(entry) for entry in model.entries],
    }
    if model.memories is not None:
        answer["capacity"] = _capacity(model.memories, options)
    return answer


def _entry(entry: Entry) -> dict[str, object]:
    return {
        "batch": entry.batch,
        "context": entry.context,
        "sequences": entry.sequences,
        "kv_bytes": entry.kv_bytes,
        "state_bytes": entry.state_bytes,
        "bytes": entry.bytes,
        "full_kv_bytes": entry.full_kv_bytes,
        "total_kv_bytes": entry.total_kv_bytes,
        "total_state_bytes": entry.total_state_bytes,
        "total_bytes": entry.total_bytes,
        "total_full_kv_bytes": entry.total_full_kv_bytes,
        "blocks": entry.blocks,
        "peak_blocks": entry.peak_blocks,
    }


def _capacity(memories: Memories, options: Options) -> dict[str, object]:
    memory, capacity = memories.memory, memories.capacity
    return {
        "gpu_memory_bytes": memory.gpu_bytes,
        "utilization": float(memory.utilization),
        "weights_bytes": memory.weights_bytes,
        "weights_basis": memories.weights.basis,
        "weights_per_gpu_bytes": capacity.weights_per_gpu_bytes,
        "overhead_bytes": memory.overhead_bytes,
        "kv_budget_bytes": capacity.kv_budget_bytes,
        "blocks": capacity.blocks,
        "usable_blocks": capacity.usable_blocks,
        "longest_sequence_tokens": capacity.longest_sequence_tokens,
        "max_num_seqs": options.max_num_seqs,
        "requests": [_fit(fit) for fit in capacity.fits],
    }


def _fit(fit: Fit) -> dict[str, object]:
    return {
        "prompt": fit.request.prompt,
        "output": fit.request.output,
        "context": fit.request.tokens,
        "fits": fit.requests,
        "limit": fit.limit.value,
    }
