"""The size of a server's KV cache in tokens, worked out of its model and its memory."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kvguard.engines.kind import EngineKind
from kvguard.engines.vllm_blocks import EngineSettings
from kvguard.estimate.model import build_model
from kvguard.estimate.options import MemoryOptions, Options
from kvguard.modelspec.dtype import Serving

TGI_MEMORY_SHARE: Final = Fraction(9, 10)  # `TGI_WIGGLE_ROOM` in its server


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiHardware:
    """What TGI runs a model on. Bytes are those of one GPU but for `weights_bytes`, the whole model's (None: work them
    out); `block_size` in tokens.
    """

    gpu_bytes: int
    overhead_bytes: int = 0
    weights_bytes: int | None = None
    num_shard: int = 1
    block_size: int = 1
    kv_cache_dtype: str = "auto"


def tgi_cache_tokens(model: str, hardware: TgiHardware) -> int:
    """What `kvguard estimate --engine tgi` makes of it. Raises ValueError starting with the name of `model`."""
    options = Options(
        configs=(model,),
        batches=(1,),
        contexts=(1,),
        beams=1,
        serving=Serving(kv_cache_dtype=hardware.kv_cache_dtype),
        engine=EngineKind.TGI,
        settings=EngineSettings(tensor_parallel_size=hardware.num_shard),
        block_size=hardware.block_size,
        max_num_seqs=None,
        request=None,
        memory=MemoryOptions(
            gpu_bytes=hardware.gpu_bytes,
            utilization=TGI_MEMORY_SHARE,
            weights_bytes=hardware.weights_bytes,
            overhead_bytes=hardware.overhead_bytes,
        ),
        bound=False,
        json=False,
        plot=None,
    )
    built = build_model(model, options)
    blocks = None if built.memories is None else built.memories.capacity.blocks
    if not blocks:
        raise ValueError(f"{model}: {'; '.join(built.notes) or 'no block fits'}")
    return blocks * hardware.block_size
