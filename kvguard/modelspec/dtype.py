"""Bytes per element of the cache. Formats that keep scales beside the elements have no such number: refused."""

from typing import Final

from kvguard.modelspec.fields import Fields, UnsupportedConfig

_AUTO: Final = "auto"
_CACHE_BYTES: Final = {
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
# A float32 checkpoint is served in 16 bit.
_MODEL_BYTES: Final = {"float32": 2, "bfloat16": 2, "float16": 2}
_DEFAULT_MODEL_DTYPE: Final = "float32"


def dtype_bytes(root: Fields, text: Fields, kv_cache_dtype: str) -> int:
    """Bytes per element for an engine's `--kv-cache-dtype`; "auto" asks the checkpoint. `text` is inside `root`."""
    if kv_cache_dtype != _AUTO:
        return _cache_bytes(kv_cache_dtype)
    for fields in (text, root):
        for name in ("quantization_config", "compression_config"):
            quantization = fields.nested(name)
            if quantization is not None and (size := _checkpoint_bytes(quantization)) is not None:
                return size
    return _model_bytes(root, text)


def _cache_bytes(kv_cache_dtype: str) -> int:
    size = _CACHE_BYTES.get(kv_cache_dtype)
    if size is None:
        expected = ", ".join((_AUTO, *_CACHE_BYTES))
        raise UnsupportedConfig("kv_cache_dtype", f"expected one of {expected}, got {kv_cache_dtype!r}")
    return size


def _checkpoint_bytes(quantization: Fields) -> int | None:
    """Element size when the checkpoint itself asks for a quantised cache, else None."""
    algorithm = quantization.text("kv_cache_quant_algo")
    if algorithm is not None:
        if algorithm.lower() != "fp8":
            raise quantization.bad_value("kv_cache_quant_algo", "FP8")
        return 1
    scheme = quantization.nested("kv_cache_scheme")
    if scheme is None:
        return None
    if scheme.whole("num_bits") != 8:
        raise scheme.bad_value("num_bits", "8")
    return 1


def _model_bytes(root: Fields, text: Fields) -> int:
    for fields in (text, root):
        for name in ("dtype", "torch_dtype"):
            dtype = fields.text(name)
            if dtype is not None:
                return _size_of(fields, name, dtype)
    return _MODEL_BYTES[_DEFAULT_MODEL_DTYPE]


def _size_of(fields: Fields, name: str, dtype: str) -> int:
    size = _MODEL_BYTES.get(dtype.removeprefix("torch."))
    if size is None:
        raise fields.bad_value(name, f"one of {', '.join(_MODEL_BYTES)}")
    return size
