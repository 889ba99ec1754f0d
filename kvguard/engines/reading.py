"""How an engine tells about itself: what it is, asked for now and then, and how full it is, asked for all the time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvguard.admission.blocks import Ahead
from kvguard.admission.release import Release
from kvguard.admission.usage import UsageSample


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """What a server's list says of one model, as it is written there, and the context it names."""

    body: bytes
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server says it is; None is not said.

    `models` are the names it answers to, `parents` maps the adapters among them to their base model, and `listing` has
    the entries of its own list of models; `permits` is how many sequences it takes in before it refuses. For an engine
    whose metrics leave them out, `capacity_tokens` is the size of its cache, or a lower bound of it, `block_size` that
    of its blocks, and `ahead` how it reserves room.
    """

    models: frozenset[str] = frozenset()
    parents: Mapping[str, str] = field(default_factory=dict)
    listing: Mapping[str, ModelEntry] = field(default_factory=dict)
    context_tokens: int | None = None
    permits: int | None = None
    release: Release | None = None
    capacity_tokens: int | None = None
    lower_bound: bool = False
    block_size: int | None = None
    ahead: Ahead | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Where one engine tells what, and how that is read.

    `facts` reads the answer of `facts_path`, raising ValueError for what it is not; `usage` a metrics page in the light
    of the facts known by then, raising ExpositionError on a broken line. Facts are asked for anew after
    `facts_seconds`; until they are read for the first time `assumed` stand for them.
    """

    facts_path: str
    facts_seconds: float
    facts: Callable[[bytes], ServerFacts]
    usage: Callable[[str, ServerFacts], UsageSample]
    assumed: ServerFacts = ServerFacts()
