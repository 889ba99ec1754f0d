"""How elements lie in the cache: bits of K and of V, and the scales beside them. Sizes as vLLM 0.32 lays them out."""

from dataclasses import dataclass
from typing import Final

from kvguard.modelspec.fields import UnsupportedConfig

_SCALE_GROUP = 16  # elements that share one 8-bit scale in nvfp4
_LATENT_TILE = 128  # elements that share one fp32 scale in fp8_ds_mla


@dataclass(frozen=True, slots=True, kw_only=True)
class KVFormat:
    """One cache dtype. `head_scale_bytes` is kept per token and head, for K and V together.

    `group_scales` adds a byte per 16 elements. Formats made for latent attention (`_ds_mla`) have no heads, and formats
    with scales per head no latent: asking raises UnsupportedConfig.
    """

    name: str
    key_bits: int = 16
    value_bits: int = 16
    head_scale_bytes: int = 0
    group_scales: bool = False
    latent_only: bool = False

    def head_bytes(self, head_size: int, head_size_v: int) -> int:
        """K and V of one token in one head."""
        if self.latent_only:
            raise UnsupportedConfig("kv_cache_dtype", f"{self.name} holds latent attention (MLA) only")
        elements = -(-head_size * self.key_bits // 8) + -(-head_size_v * self.value_bits // 8)
        groups = (head_size + head_size_v) // _SCALE_GROUP if self.group_scales else 0
        return elements + groups + self.head_scale_bytes

    def latent_bytes(self, latent_size: int, rope_size: int) -> int:
        """One token's latent vector and its rotary part, which the `_ds_mla` formats keep in more bits."""
        if self.name == "fp8_ds_mla":
            return latent_size + 4 * -(-latent_size // _LATENT_TILE) + 2 * rope_size
        if self.name == "nvfp4_ds_mla":
            return latent_size // 2 + latent_size // _SCALE_GROUP + rope_size
        if self.head_scale_bytes or self.group_scales or self.key_bits != self.value_bits:
            raise UnsupportedConfig("kv_cache_dtype", f"{self.name} does not hold latent attention (MLA)")
        return (latent_size + rope_size) * self.key_bits // 8


SIXTEEN_BIT: Final = KVFormat(name="bfloat16")
FLOAT32: Final = KVFormat(name="float32", key_bits=32, value_bits=32)
FP8: Final = KVFormat(name="fp8", key_bits=8, value_bits=8)

FORMATS: Final = {
    "bfloat16": SIXTEEN_BIT,
    "float16": KVFormat(name="float16"),
    "half": KVFormat(name="float16"),
    "float32": FLOAT32,
    "float": FLOAT32,
    "fp8": FP8,
    "fp8_e4m3": FP8,
    "fp8_e5m2": FP8,
    "fp8_inc": FP8,
    "fp8_per_token_head": KVFormat(name="fp8_per_token_head", key_bits=8, value_bits=8, head_scale_bytes=8),
    "int8_per_token_head": KVFormat(name="int8_per_token_head", key_bits=8, value_bits=8, head_scale_bytes=8),
    "int4_per_token_head": KVFormat(name="int4_per_token_head", key_bits=4, value_bits=4, head_scale_bytes=8),
    "nvfp4": KVFormat(name="nvfp4", key_bits=4, value_bits=4, group_scales=True),
    "turboquant_k8v4": KVFormat(name="turboquant_k8v4", key_bits=8, value_bits=4, head_scale_bytes=4),
    "turboquant_4bit_nc": KVFormat(name="turboquant_4bit_nc", key_bits=4, value_bits=4, head_scale_bytes=6),
    "turboquant_k3v4_nc": KVFormat(name="turboquant_k3v4_nc", key_bits=3, value_bits=4, head_scale_bytes=6),
    "turboquant_3bit_nc": KVFormat(name="turboquant_3bit_nc", key_bits=3, value_bits=3, head_scale_bytes=6),
    "fp8_ds_mla": KVFormat(name="fp8_ds_mla", key_bits=8, value_bits=8, latent_only=True),
    "nvfp4_ds_mla": KVFormat(name="nvfp4_ds_mla", key_bits=4, value_bits=4, latent_only=True),
}
