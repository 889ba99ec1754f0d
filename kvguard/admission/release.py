"""What differs between releases of one engine in how a request is understood."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What one release of an engine makes of a request that others make something else of.

    `default_output_tokens` stands for an absent cap, None for the rest of the context; caps of the names in
    `ignored_caps` it does not know.
    """

    default_output_tokens: int | None = None
    ignored_caps: frozenset[str] = frozenset()
