"""Tokens of the parts of a request that are not text: what to expect, and at most how many.

A size the payload does not state is the family's largest. Owns the choice of rule; the rules are in `media_families`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kvguard.protocols.media import MediaKind, MediaPart
from kvguard.tokenization.media_families import (
    NO_TOKENS,
    UNKNOWN_FAMILY,
    AudioRule,
    MediaFamily,
    MediaTokens,
    family_named,
    family_of,
)

# What a part of unknown size is expected to be like.
_USUAL_SIDE = 768
_USUAL_SECONDS = 30.0
_USUAL_UNKNOWN_PICTURE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSetting:
    """An operator's word for the models a pattern matches: their family, or tokens that stand for every part of a kind.

    `family` is one of `media_families.FAMILIES`, or "unknown".
    """

    pattern: str
    family: str | None = None
    image: int | None = None
    audio: int | None = None
    video: int | None = None
    file: int | None = None

    def matches(self, names: Sequence[str]) -> bool:
        """Whether the pattern is that of one of these names, in upper or lower case."""
        return any(fnmatchcase(name.lower(), self.pattern.lower()) for name in names)

    def tokens(self, kind: MediaKind) -> int | None:
        """The tokens set for a kind of part, None when the family decides."""
        return {
            MediaKind.IMAGE: self.image,
            MediaKind.AUDIO: self.audio,
            MediaKind.VIDEO: self.video,
            MediaKind.FILE: self.file,
        }[kind]


class MediaAllowance:
    """Tokens of the parts of a request; of several settings the first whose pattern matches a name of the model counts.

    The last of the names is the base model's, which tells the family.
    """

    def __init__(self, settings: Sequence[MediaSetting] = ()) -> None:
        self._settings = tuple(settings)

    def of(self, parts: Iterable[MediaPart], names: Sequence[str]) -> MediaTokens:
        """All parts together."""
        setting = next((one for one in self._settings if one.matches(names)), None)
        family = family_of(names[-1]) if setting is None or setting.family is None else family_named(setting.family)
        return sum((_part(part, setting, family) for part in parts), NO_TOKENS)


def _part(part: MediaPart, setting: MediaSetting | None, family: MediaFamily) -> MediaTokens:
    fixed = None if setting is None else setting.tokens(part.kind)
    if fixed is not None:
        return MediaTokens(expected_tokens=fixed, upper_tokens=fixed)
    if part.kind is MediaKind.IMAGE:
        return _picture(part, family)
    if part.kind is MediaKind.AUDIO:
        return _audio(part, family.audio)
    return family.video if part.kind is MediaKind.VIDEO else family.file


def _picture(part: MediaPart, family: MediaFamily) -> MediaTokens:
    if family is UNKNOWN_FAMILY:
        return MediaTokens(expected_tokens=_USUAL_UNKNOWN_PICTURE, upper_tokens=family.picture.largest())
    if part.width and part.height:
        tokens = min(family.picture.of_size(part.width, part.height), family.picture.largest())
        return MediaTokens(expected_tokens=tokens, upper_tokens=tokens)
    usual = min(family.picture.of_size(_USUAL_SIDE, _USUAL_SIDE), family.picture.largest())
    return MediaTokens(expected_tokens=usual, upper_tokens=family.picture.largest())


def _audio(part: MediaPart, rule: AudioRule) -> MediaTokens:
    if part.seconds is not None:
        tokens = rule.of_length(part.seconds)
        return MediaTokens(expected_tokens=tokens, upper_tokens=tokens)
    return MediaTokens(
        expected_tokens=rule.of_length(min(_USUAL_SECONDS, rule.max_seconds)),
        upper_tokens=rule.of_length(rule.max_seconds),
    )
