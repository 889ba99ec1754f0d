"""TGI's reservation by version, at and beside every boundary of its rule."""

import pytest

from kvguard.engines.tgi_blocks import (
    BLOCK_SIZES,
    TgiSettings,
    UnsupportedTgiModel,
    Version,
    ahead_of,
    block_size_of,
    default_new_tokens,
    parse_version,
    tgi_layout,
    usable_blocks,
)
from kvguard.modelspec.formats import SIXTEEN_BIT
from kvguard.modelspec.spec import AttentionSpec, KVCacheSpec, LatentSpec, LayerSpec, StateSpec

FULL = AttentionSpec(num_kv_heads=8, head_size=128, format=SIXTEEN_BIT)
SLIDING = AttentionSpec(num_kv_heads=8, head_size=128, format=SIXTEEN_BIT, sliding_window=4096)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("3.3.6-dev0", (3, 3, 6)),
        ("v2.0.4", (2, 0, 4)),
        ("1.4.5", (1, 4, 5)),
        ("3.3", None),
        ("", None),
        ("nightly", None),
        ("1.2.34567", None),
    ],
)
def test_versions_as_info_gives_them(text: str, version: Version | None) -> None:
    """Three numbers, with or without a suffix; anything else is unknown."""
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("version", "tokens"),
    [((0, 9, 4), 20), ((1, 1, 1), 20), ((1, 2, 0), None), ((1, 3, 0), 100), ((2, 4, 1), 100), ((3, 0, 0), None)],
)
def test_what_an_absent_cap_means(version: Version, tokens: int | None) -> None:
    """20, then the rest of the context, then 100, then the rest again."""
    assert default_new_tokens(version) == tokens


def reserved(prompt: int, new: int, settings: TgiSettings, *, named: bool = True) -> int:
    """Blocks before the first token."""
    return ahead_of(settings).blocks(prompt, new, named=named, produced=0, block_size=settings.block_size)


@pytest.mark.parametrize(
    ("version", "new", "named", "tokens"),
    [
        ((3, 3, 7), 1, True, 100),
        ((3, 3, 7), 1024, True, 1123),
        ((3, 3, 7), 1025, True, 1123),
        ((3, 1, 1), 5000, True, 1123),
        ((3, 1, 0), 5000, True, 5099),
        ((3, 1, 0), 5000, False, 1123),
        ((3, 0, 0), 5000, False, 1123),
        ((2, 4, 1), 5000, True, 5099),
        ((2, 4, 1), 5000, False, 5099),
    ],
)
def test_an_answer_is_reserved_in_pieces(version: Version, new: int, named: bool, tokens: int) -> None:
    """Prompt plus new minus one; 1024 at a time from 3.1.1, and in 3.0.0 to 3.1.0 only where no cap was named."""
    assert reserved(100, new, TgiSettings(version=version), named=named) == tokens


@pytest.mark.parametrize(
    ("version", "prefix_caching", "prompt", "tokens"),
    [
        ((3, 3, 7), False, 100, 599),
        ((3, 2, 1), False, 100, 599),
        ((3, 2, 0), False, 100, 256),
        ((3, 2, 0), False, 300, 256),
        ((3, 2, 0), True, 100, 599),
        ((2, 4, 0), False, 100, 256),
        ((2, 3, 1), False, 100, 256),
        ((2, 3, 1), False, 300, 300),
        ((2, 3, 1), True, 100, 599),
        ((2, 2, 0), False, 100, 256),
        ((2, 2, 0), True, 300, 300),
    ],
)
def test_a_window_counts_up_to_three_two_zero(version: Version, prefix_caching: bool, prompt: int, tokens: int) -> None:
    """A window of 256 tokens and 500 new ones: ignored from 3.2.1, and before it wherever prefixes are cached."""
    settings = TgiSettings(version=version, prefix_caching=prefix_caching, sliding_window=256)
    assert reserved(prompt, 500, settings) == tokens


@pytest.mark.parametrize(
    ("version", "prompt", "new", "blocks"),
    [
        ((3, 3, 7), 16, 1, 1),
        ((3, 3, 7), 16, 2, 2),
        ((3, 3, 7), 1, 16, 1),
        ((3, 3, 7), 1, 17, 2),
        # The v2 queue pads prompt and output each.
        ((2, 2, 0), 1, 16, 2),
        ((2, 2, 0), 17, 17, 4),
    ],
)
def test_reservations_are_whole_blocks(version: Version, prompt: int, new: int, blocks: int) -> None:
    """At block size 16, as paged attention has it."""
    assert reserved(prompt, new, TgiSettings(version=version, block_size=BLOCK_SIZES["paged"])) == blocks


def test_speculation_takes_room() -> None:
    """Its depth is added once."""
    assert reserved(100, 10, TgiSettings(speculate=3)) == 112
    assert reserved(100, 10, TgiSettings(version=(2, 0, 4), speculate=3)) == 113


def test_blocks_are_as_small_as_the_attention_of_the_release() -> None:
    """A token each since 2.3, sixteen before."""
    assert (block_size_of((2, 2, 0)), block_size_of((2, 3, 0))) == (16, 1)


def test_one_block_is_kept_for_health_checks() -> None:
    """A budget of 1600 tokens in blocks of 16 leaves 99."""
    assert usable_blocks(1600, 16) == 99


def test_every_layer_keeps_every_token() -> None:
    """Windows change nothing, and a block costs its tokens in all layers of one shard."""
    for layer in (FULL, SLIDING):
        layout = tgi_layout(KVCacheSpec(layers=((layer,),) * 32), TgiSettings(block_size=16))
        assert (layout.rule.settled_blocks(8192), layout.block_bytes) == (512, 16 * 131072)
    two = tgi_layout(KVCacheSpec(layers=((FULL,),) * 32), TgiSettings(num_shard=2))
    assert two.block_bytes == 65536
    one_head = AttentionSpec(num_kv_heads=1, head_size=64, format=SIXTEEN_BIT)
    assert tgi_layout(KVCacheSpec(layers=((one_head,),)), TgiSettings(num_shard=4)).block_bytes == 256
    latent = LatentSpec(latent_size=512, rope_size=64, format=SIXTEEN_BIT)
    assert tgi_layout(KVCacheSpec(layers=((latent,),)), TgiSettings(num_shard=4)).block_bytes == 1152


@pytest.mark.parametrize(
    ("layers", "shards"),
    [
        ((FULL, AttentionSpec(num_kv_heads=4, head_size=128, format=SIXTEEN_BIT)), 1),
        ((StateSpec(conv_elements=1, recurrent_elements=1, conv_element_bytes=2, recurrent_element_bytes=2),), 1),
        ((FULL,), 16),
    ],
)
def test_models_tgi_cannot_lay_out(layers: tuple[LayerSpec, ...], shards: int) -> None:
    """Two geometries, constant state, and fewer KV heads than shards are refused by name."""
    with pytest.raises(UnsupportedTgiModel):
        tgi_layout(KVCacheSpec(layers=tuple((layer,) for layer in layers)), TgiSettings(num_shard=shards))
