"""Blocks that requests with the same beginning share in the engine's prefix cache, and who shares them now.

A prompt has marks along its beginning; a segment is what lies between two of them. Marks are of all that is before
them, so whoever has a segment has those before it too: the requests in a segment become fewer from one to the next. A
segment with two sequences or more is held once. How many blocks a segment has is decided by the first request in it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefixMark:
    """A place in a prompt: what the prompt must be up to there, as a hash, and at least how many tokens that is."""

    hash: int
    tokens: int
