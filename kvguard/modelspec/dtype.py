"""Which format the cache has, and how wide recurrent state is: from the engine's settings and the checkpoint."""

from dataclasses import dataclass
from typing import Final

from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.formats import FORMATS, FP8, SIXTEEN_BIT, KVFormat

AUTO: Final = "auto"
# A float32 checkpoint is served in 16 bit.
_MODEL_BYTES: Final = {"float32": 2, "bfloat16": 2, "float16": 2}
_STATE_BYTES: Final = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Settings of the engine that change what a sequence keeps; "auto" leaves it to the checkpoint.

    `kv_cache_dtype` and `mamba_ssm_cache_dtype` are vLLM's flags of those names; `mtp` says that the model's own
    multi-token-prediction layers draft for it, each with a cache of its own.
    """

    kv_cache_dtype: str = AUTO
    mamba_ssm_cache_dtype: str = AUTO
    mtp: bool = False


def cache_format(root: Fields, text: Fields, serving: Serving) -> KVFormat:
    """The cache's format; `text` is the language model's object inside `root`."""
    if serving.kv_cache_dtype != AUTO:
        chosen = FORMATS.get(serving.kv_cache_dtype)
        if chosen is None:
            expected = ", ".join((AUTO, *FORMATS))
            raise UnsupportedConfig("kv_cache_dtype", f"expected one of {expected}, got {serving.kv_cache_dtype!r}")
        return chosen
    for fields in (text, root):
        for name in ("quantization_config", "compression_config"):
            quantization = fields.nested(name)
            if quantization is not None and (found := _checkpoint_format(quantization)) is not None:
                return found
    _check_model_dtype(root, text)
    return SIXTEEN_BIT


def recurrent_bytes(serving: Serving, checkpoint: int) -> int:
    """Bytes of one recurrent element, `checkpoint` unless the engine was told otherwise."""
    if serving.mamba_ssm_cache_dtype == AUTO:
        return checkpoint
    size = _STATE_BYTES.get(serving.mamba_ssm_cache_dtype)
    if size is None:
        expected = ", ".join((AUTO, *_STATE_BYTES))
        problem = f"expected one of {expected}, got {serving.mamba_ssm_cache_dtype!r}"
        raise UnsupportedConfig("mamba_ssm_cache_dtype", problem)
    return size


def state_bytes_named(fields: Fields, name: str, *, default: int) -> int:
    """Bytes of an element whose dtype the checkpoint names in a field."""
    dtype = fields.text(name)
    if dtype is None:
        return default
    size = _STATE_BYTES.get(dtype.removeprefix("torch."))
    if size is None:
        raise fields.bad_value(name, f"one of {', '.join(_STATE_BYTES)}")
    return size


def _checkpoint_format(quantization: Fields) -> KVFormat | None:
    """The format when the checkpoint itself asks for a quantised cache, else None."""
    algorithm = quantization.text("kv_cache_quant_algo")
    if algorithm is not None:
        chosen = {"fp8": FP8, "nvfp4": FORMATS["nvfp4"]}.get(algorithm.lower())
        if chosen is None:
            raise quantization.bad_value("kv_cache_quant_algo", "FP8 or NVFP4")
        return chosen
    scheme = quantization.nested("kv_cache_scheme")
    if scheme is None:
        return None
    if scheme.whole("num_bits") != 8:
        raise scheme.bad_value("num_bits", "8")
    return FP8


def _check_model_dtype(root: Fields, text: Fields) -> None:
    for fields in (text, root):
        for name in ("dtype", "torch_dtype"):
            dtype = fields.text(name)
            if dtype is not None and dtype.removeprefix("torch.") not in _MODEL_BYTES:
                raise fields.bad_value(name, f"one of {', '.join(_MODEL_BYTES)}")
            if dtype is not None:
                return
