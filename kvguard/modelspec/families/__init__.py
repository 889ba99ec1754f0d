"""Every kind of attention, one file each. The first family that claims a config reads it; `plain` claims what is left.

A new family is a file here with a `FAMILY`, and its name in this list.
"""

from typing import Final

from kvguard.modelspec.families import (
    block_sparse,
    compressed,
    cross_attention,
    encoder_decoder,
    gpt_neo,
    interleaved,
    latent,
    linear,
    looped,
    mamba,
    per_layer,
    plain,
    recurrent,
    shared,
    sink,
)
from kvguard.modelspec.family import Family

FAMILIES: Final[tuple[Family, ...]] = (
    compressed.FAMILY,
    block_sparse.FAMILY,
    looped.FAMILY,
    linear.FAMILY,
    mamba.FAMILY,
    recurrent.FAMILY,
    latent.FAMILY,
    encoder_decoder.FAMILY,
    cross_attention.FAMILY,
    per_layer.FAMILY,
    shared.FAMILY,
    sink.FAMILY,
    gpt_neo.FAMILY,
    interleaved.FAMILY,
    plain.FAMILY,
)
