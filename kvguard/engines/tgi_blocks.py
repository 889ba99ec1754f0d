"""What TGI reserves for a request, by version: everything at admission. Nothing grows and nothing is preempted.

After backends/v3/src/queue.rs and block_allocator.rs of text-generation-inference 3.3.7, and the v2 queue before it.
Versions are (major, minor, patch). Where releases differ in a way that is not known for sure, the larger number stands.
"""

import re
from dataclasses import dataclass
from typing import Final

from kvguard.admission.blocks import Ahead, BlockRule, PoolLayout
from kvguard.modelspec.spec import AttentionSpec, KVCacheSpec, LatentSpec

Version = tuple[int, int, int]

SLICE_TOKENS: Final = 1024  # most new tokens reserved at once; a longer answer queues again for the next piece
BLOCK_SIZES: Final = {"flashinfer": 1, "flashdecoding": 256, "paged": 16, "flashdecoding-ipex": 64}

_V3_QUEUE: Final = (2, 3, 0)
_WINDOW_CUTS_ALL: Final = (2, 4, 0)  # min(tokens, W), and only without prefix caching
_NO_WINDOW: Final = (3, 2, 1)
_SLICES_DEFAULT: Final = (3, 0, 0)
_SLICES_ALL: Final = (3, 1, 1)
# Version from which an absent max_new_tokens means so many; None is the rest of the context.
_DEFAULT_NEW_TOKENS: Final[tuple[tuple[Version, int | None], ...]] = (
    ((3, 0, 0), None),
    ((1, 3, 0), 100),
    ((1, 2, 0), None),
    ((0, 0, 0), 20),
)


class UnsupportedTgiModel(ValueError):
    """A model TGI does not keep in one geometry; the bytes of its layers are still right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiSettings:
    """How a TGI server was started. `block_size` follows its `ATTENTION`; `speculate` is its speculation depth."""

    version: Version = (3, 3, 7)
    block_size: int = 1
    speculate: int = 0
    prefix_caching: bool = True
    sliding_window: int | None = None
    num_shard: int = 1


def parse_version(text: str) -> Version | None:
    """The numbers of `/info.version`, such as "3.3.6-dev0"; None when it is not one."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?!\d)", text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def default_new_tokens(version: Version) -> int | None:
    """New tokens where a request names none; None means the rest of the context."""
    return next(tokens for since, tokens in _DEFAULT_NEW_TOKENS if version >= since)


def block_size_of(version: Version) -> int:
    """Tokens of a block unless `ATTENTION` says otherwise: flashinfer's since 2.3, those of paged attention before."""
    return BLOCK_SIZES["flashinfer" if version >= _V3_QUEUE else "paged"]


def ahead_of(settings: TgiSettings) -> Ahead:
    """How the release reserves: prompt + new - 1 + speculation, of which pieces and windows may leave something out.

    Up to 3.2.0 a window bounds what is reserved, since 2.3 only without prefix caching; 2.3 and before it spares the
    prompt. Releases before 2.3 pad prompt and output to blocks each.
    """
    version = settings.version
    v2 = version < _V3_QUEUE
    windowed = version < _NO_WINDOW and (v2 or not settings.prefix_caching)
    return Ahead(
        piece_tokens=SLICE_TOKENS if version >= _SLICES_ALL else None,
        open_piece_tokens=SLICE_TOKENS if version >= _SLICES_DEFAULT else None,
        speculated_tokens=settings.speculate,
        sliding_window=settings.sliding_window if windowed else None,
        window_spares_prompt=version < _WINDOW_CUTS_ALL,
        padded=v2,
    )


def usable_blocks(max_batch_total_tokens: int, block_size: int) -> int:
    """Blocks requests may hold; block 0 is kept for health checks."""
    return max_batch_total_tokens // block_size - 1


def tgi_layout(spec: KVCacheSpec, settings: TgiSettings = TgiSettings()) -> PoolLayout:
    """One geometry for all layers, and every token in each of them: TGI ignores windows since 3.2.1.

    Block bytes are those of one shard: KV heads // shards, a single KV head on every shard. Raise UnsupportedTgiModel
    for layers of several kinds or with fewer KV heads than shards.
    """
    kinds = set(spec.without_windows().caches())
    if len(kinds) != 1:
        raise UnsupportedTgiModel(f"TGI keeps all layers in one geometry, the model has {len(kinds)}")
    [kind] = kinds
    if not isinstance(kind, AttentionSpec | LatentSpec):
        raise UnsupportedTgiModel("TGI keeps no state of this kind in its blocks")
    if isinstance(kind, AttentionSpec) and 1 < kind.num_kv_heads < settings.num_shard:
        raise UnsupportedTgiModel(f"{kind.num_kv_heads} KV heads cannot be split over {settings.num_shard} shards")
    token_bytes = kind.on_rank(settings.num_shard).bytes_per_token() * sum(1 for _ in spec.caches())
    rule = BlockRule.plain(settings.block_size)
    return PoolLayout(rule=rule, block_bytes=settings.block_size * token_bytes)
