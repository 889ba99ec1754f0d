"""Writing a request back: degraded, and asking for the usage it hides. What is not changed keeps its bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.admission.release import Release
from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, members, read_int, write_fields
from kvguard.protocols.request import IN_EVERY_CHUNK, INCLUDE_USAGE, STREAM_OPTIONS, Copies, InferenceRequest

MAX_NAMED_CHANGES: Final = 16  # of a body that is many requests; they are read in a header

_NOTHING: Final = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A body to forward and what was changed in it, e.g. `("max_tokens=1024->512", "n=4->1")`.

    Where it `asks_usage`, the client did not, and must not see it.
    """

    body: bytes
    changes: tuple[str, ...]
    asks_usage: bool = False


def rewrite(
    request: InferenceRequest, degradation: Degradation, *, release: Release | None = None, ask_usage: bool = False
) -> Rewritten:
    """The request under `degradation`, and asking for the usage it hides; the client's own bytes if nothing changes."""
    if request.parts:
        return _rewrite_parts(request, degradation, release)
    edits = list(_edits(request, degradation, release))
    asks = ask_usage and request.hides_usage
    if not edits and not asks:
        return Rewritten(request.body, ())
    fields = _edited(request, edits) if edits else request.fields
    if asks:
        given = members(fields.get(STREAM_OPTIONS, _NOTHING), STREAM_OPTIONS)
        less = {IN_EVERY_CHUNK: msgspec.Raw(b"false")} if IN_EVERY_CHUNK in given else {}
        fields = {**fields, STREAM_OPTIONS: _object({**given, **less, INCLUDE_USAGE: msgspec.Raw(b"true")})}
    return Rewritten(write_fields(fields), tuple(str(edit) for edit in edits), asks)


def _rewrite_parts(request: InferenceRequest, degradation: Degradation, release: Release | None) -> Rewritten:
    """Every part by itself; what is changed alike in several is named once."""
    parts = [rewrite(part, degradation, release=release) for part in request.parts]
    changes = tuple(dict.fromkeys(change for part in parts for change in part.changes))
    if not changes or request.inside is None:
        return Rewritten(request.body, ())
    written = msgspec.Raw(b"[" + b",".join(part.body for part in parts) + b"]")
    return Rewritten(write_fields({**request.fields, request.inside: written}), changes[:MAX_NAMED_CHANGES])


def _object(fields: Fields) -> msgspec.Raw:
    return msgspec.Raw(write_fields(fields))


@dataclass(frozen=True, slots=True)
class _Edit:
    """A field set to a lower value, or taken out: then `after` is None. `before` is None where it was open."""

    name: str
    before: int | None
    after: int | None

    def __str__(self) -> str:
        return f"{self.name}={_value(self.before)}->{_value(self.after)}"


def _value(value: int | None) -> str:
    return "unset" if value is None else msgspec.json.encode(value).decode()


def _edited(request: InferenceRequest, edits: list[_Edit]) -> Fields:
    written = {edit.name: msgspec.Raw(msgspec.json.encode(edit.after)) for edit in edits if edit.after is not None}
    gone = {edit.name for edit in edits if edit.after is None}
    kept = {name: value for name, value in request.params.items() if name not in gone}
    changed = {**kept, **written, **request.implied}
    return changed if request.inside is None else {**request.fields, request.inside: _object(changed)}


def _edits(request: InferenceRequest, degradation: Degradation, release: Release | None) -> Iterator[_Edit]:
    """Nothing on a route that lets nobody say how much to generate."""
    if not request.caps.names:
        return
    if degradation.output_cap is not None:
        yield from _lower_caps(request, degradation.output_cap, release)
    if degradation.cut is not SequenceCut.NONE:
        yield from _CUTS[request.copied_by](request, degradation.cut)


def _lower_caps(request: InferenceRequest, cap: int, release: Release | None) -> Iterator[_Edit]:
    names = request.caps.known_to(release)
    given = [(name, read_int(request.params, name)) for name in names]
    named = [(name, value) for name, value in given if value is not None]
    for name, value in named:
        if value > cap:
            yield _Edit(name, value, cap)
    default = request.caps.default_of(release)
    if not named and (default is None or default > cap):
        # The oldest of the names is the one every release of the engine knows.
        there = [name for name in names if name in request.params] if request.caps.aliases else []
        yield _Edit(there[0] if there else names[-1], None, cap)


def _cut_beams(request: InferenceRequest, cut: SequenceCut) -> Iterator[_Edit]:
    copies = request.copies
    if request.beams:
        yield _Edit("use_beam_search", True, False)
        yield from _lower_least(request)
    if copies > 1 and (request.beams or cut is SequenceCut.ALL):
        yield _Edit("n", copies, 1)
        copies = 1
    for name, least in (("num_beams", 1), ("best_of", copies)):
        value = _foreign_int(request.params, name)
        if value is not None and value > least:
            yield _Edit(name, value, least)


def _lower_least(request: InferenceRequest) -> Iterator[_Edit]:
    """A beam search does not look at `min_tokens`; anything else is refused with more than its own cap."""
    cap = request.caps.default_tokens if request.requested_cap is None else request.requested_cap
    if cap is not None and request.min_tokens > cap:
        yield _Edit("min_tokens", request.min_tokens, cap)


def _foreign_int(fields: Fields, name: str) -> int | None:
    """An integer field that the engine may not know; it is not for kvguard to refuse anything else there."""
    try:
        return read_int(fields, name)
    except InvalidRequest:
        return None


def _cut_best_of(request: InferenceRequest, _: SequenceCut) -> Iterator[_Edit]:
    if request.copies > 1:
        yield _Edit("best_of", request.copies, None)


def _cut_nothing(_: InferenceRequest, __: SequenceCut) -> Iterator[_Edit]:
    return iter(())


_CUTS: Final = {Copies.N: _cut_beams, Copies.BEST_OF: _cut_best_of, Copies.NONE: _cut_nothing}
