"""Blocks that requests with the same beginning share in the engine's prefix cache, and who shares them now.

A prompt has marks along its beginning; a segment is what lies between one mark and the next. A mark is of all that is
before it, so whoever goes through a segment goes through those before it too, and from each to the next there can only
be fewer. A segment that two sequences or more go through is held once. How many blocks it has was decided by the first.
"""

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvguard.admission.blocks import BlockRule


@dataclass(frozen=True, slots=True)
class PrefixMark:
    """A place in a prompt: what the prompt must be up to there, as a hash, and at least how many tokens that is."""

    hash: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatch:
    """Leading blocks of a prompt that others hold: `shared` by several sequences, `matched` by one at least.

    What only one holds, that one gives up once it has generated `owner_remaining` tokens more. `own` are all leading
    blocks up to the prompt's last mark, which sequences of this very prompt would share among themselves.
    """

    shared: int = 0
    matched: int = 0
    own: int = 0
    owner_remaining: int = 0

    def saved(self, copies: int) -> int:
        """How many blocks fewer so many sequences hold together now than if they shared nothing."""
        return self.matched + (copies - 1) * self.own


NO_MATCH: Final = PrefixMatch()


@dataclass(slots=True, eq=False)
class _Segment:
    """`end` and `blocks` are whole leading blocks up to its end, and those of them that are its own.

    `owners` maps those who go through it to their sequences, `began` is when the first did.
    """

    hash: int
    end: int
    blocks: int
    began: float
    owners: dict[int, int] = field(default_factory=dict)
    sequences: int = 0

    @property
    def shared(self) -> bool:
        return self.sequences > 1

    @property
    def lone_owner(self) -> int | None:
        """The owner of its only sequence."""
        return next(iter(self.owners)) if self.sequences == 1 else None


class SharedPrefixes:
    """Who goes through which segments. Owners are known by numbers; `blocks` are all that are shared, each once.

    `fresh_blocks` of them were first held at or after the last `mark`.
    """

    def __init__(self, rule: BlockRule, *, marked_at: float = -math.inf) -> None:
        self._shares = rule.shares_prefixes
        self._block_size = rule.block_size
        # The last block it finds an engine that looks ahead computes anew.
        self._computed_anew = 1 if rule.lookahead_tokens else 0
        self._marked_at = marked_at
        self._segments: dict[int, _Segment] = {}
        self._paths: dict[int, list[_Segment]] = {}
        self.blocks = 0
        self.fresh_blocks = 0

    def mark(self, moment: float) -> None:
        """From now on blocks are fresh that were first held at this moment or later."""
        self._marked_at = moment
        self.fresh_blocks = sum(each.blocks for each in self._shared() if each.began >= moment)

    def enter(
        self, owner: int, marks: Sequence[PrefixMark], *, prompt_tokens: int, copies: int, began: float
    ) -> int | None:
        """Let an owner's sequences go through their segments; who went through some of them alone until now."""
        path, alone = self._path(marks, prompt_tokens, began), None
        for segment in path:
            alone = alone if segment.lone_owner is None else segment.lone_owner
            self._change(segment, owner, copies)
        if path:
            self._paths[owner] = path
        return alone

    def leave(self, owner: int) -> int | None:
        """Take an owner's sequences back; who goes through some of their segments alone from now on."""
        alone = None
        for segment in self._paths.pop(owner, ()):
            self._change(segment, owner, -segment.owners[owner])
            alone = alone if segment.lone_owner is None else segment.lone_owner
            if not segment.owners:
                del self._segments[segment.hash]
        return alone

    def leading_blocks(self, owner: int) -> int:
        """Leading blocks of each of an owner's sequences that are shared."""
        return max((segment.end for segment in self._paths.get(owner, ()) if segment.shared), default=0)

    def match(self, marks: Sequence[PrefixMark], prompt_tokens: int) -> tuple[PrefixMatch, int | None]:
        """What such a prompt finds, and who holds alone what only one holds."""
        limit, shared, matched, own, last = self._limit(prompt_tokens), 0, 0, 0, None
        for number, mark in enumerate(marks):
            segment = self._segments.get(mark.hash)
            if segment is None:
                own = self._own(marks[number:], limit)
                break
            if segment.end > limit:
                break
            matched, last = segment.end, segment
            if segment.sequences > 1:
                shared = matched
        alone = None if last is None else last.lone_owner
        return PrefixMatch(shared=shared, matched=matched, own=max(own, matched)), alone

    def blocks_before(self, moment: float) -> int:
        """Shared blocks that were first held before `moment`."""
        return sum(each.blocks for each in self._shared() if each.began < moment)

    def blocks_of(self, owners: Container[int]) -> int:
        """Shared blocks that one of these owners holds at least."""
        return sum(each.blocks for each in self._shared() if any(owner in owners for owner in each.owners))

    def _shared(self) -> Iterator[_Segment]:
        return (segment for segment in self._segments.values() if segment.shared)

    def _limit(self, prompt_tokens: int) -> int:
        """The last token of a prompt is always computed."""
        return self._whole(prompt_tokens - 1) if self._shares else 0

    def _whole(self, tokens: int) -> int:
        """Whole blocks of the first `tokens` that can be had from others."""
        return max(0, tokens // self._block_size - self._computed_anew)

    def _own(self, marks: Sequence[PrefixMark], limit: int) -> int:
        """The end of the last segment these marks, which nobody has yet, would make."""
        ends = (self._whole(mark.tokens) for mark in reversed(marks))
        return next((each for each in ends if each <= limit), 0)

    def _path(self, marks: Sequence[PrefixMark], prompt_tokens: int, began: float) -> list[_Segment]:
        limit, path, end = self._limit(prompt_tokens), [], 0
        for mark in marks:
            segment = self._segments.get(mark.hash)
            reached = max(end, self._whole(mark.tokens)) if segment is None else segment.end
            if reached > limit:
                break
            if segment is None:
                segment = self._segments[mark.hash] = _Segment(mark.hash, reached, reached - end, began)
            path.append(segment)
            end = reached
        return path

    def _change(self, segment: _Segment, owner: int, copies: int) -> None:
        """Let so many sequences more of an owner go through a segment, or fewer, of which none is left then."""
        before = segment.blocks if segment.shared else 0
        segment.sequences += copies
        if copies > 0:
            segment.owners[owner] = copies
        else:
            del segment.owners[owner]
        more = (segment.blocks if segment.shared else 0) - before
        self.blocks += more
        self.fresh_blocks += more if segment.began >= self._marked_at else 0
