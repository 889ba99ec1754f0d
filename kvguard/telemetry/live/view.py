"""What the live page shows, as it goes over the wire: one `Snapshot` at a time. Ratios are shares of the KV cache."""

from collections.abc import Mapping

from msgspec import Struct, field


class Usage(Struct, frozen=True, kw_only=True):
    """How full one backend is; `observed` only while its gauge is fresh."""

    observed: float | None
    projected: float
    reserved: float
    peak: float


class Memory(Struct, frozen=True, kw_only=True):
    """The cache of one backend in blocks. A strip is one request: its prompt, what it has produced, and what is still
    expected of it; of the smallest requests only what they hold and what is still to come is told, all together.
    """

    capacity_blocks: int
    foreign_blocks: int
    shared_blocks: int
    strips: tuple[tuple[int, int, int], ...]
    rest_requests: int
    rest: tuple[int, int]


class Server(Struct, frozen=True, kw_only=True):
    """One backend. What is not known is None."""

    name: str
    tier: int
    shadow: bool
    standing: str
    telemetry: str
    condition: str
    requests: int
    sequences: int
    gauge_age_seconds: float | None = None
    engine_waiting: int | None = None
    capacity_tokens: int | None = None
    demand_ratio: float | None = None
    half_free_seconds: float | None = None
    usage: Usage | None = None
    memory: Memory | None = None


class Traffic(Struct, frozen=True, kw_only=True):
    """What became of the requests of the last `seconds`, and whom refusals and cuts met, tenants as metrics name
    them.
    """

    seconds: int
    outcomes: Mapping[str, int]
    reasons: Mapping[str, int]
    tenants: Mapping[str, int]
    classes: Mapping[str, int]


class Happening(Struct, frozen=True, kw_only=True):
    """Something that happened, in plain words; `at` in seconds since the epoch. Of `count` things alike in one second
    the last is told.
    """

    at: float
    tier: int
    kind: str
    backend: str
    words: str
    request_id: str = ""
    count: int = 1


class Headline(Struct, frozen=True, kw_only=True):
    """The first things to know: `level` is calm, busy, overload or fault; `turn` says what could be changed."""

    level: str
    title: str
    who: str
    doing: str
    next: str
    turn: str


class Moment(Struct, frozen=True, kw_only=True):
    """One second gone by: of each backend observed, projected, peak and the tier; and the requests of that second."""

    at: float
    servers: Mapping[str, tuple[float | None, float | None, float | None, int]]
    admitted: int
    degraded: int
    refused: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """All of it now. `thresholds` are those of TRIM, RESTRICT and REJECT; `moment` is the last second kept."""

    at: float
    version: str
    phase: str
    ready: bool
    settings_hash: str
    thresholds: tuple[float, float, float]
    waiting: int
    waiting_most: int
    headline: Headline
    traffic: Traffic
    servers: tuple[Server, ...]
    happenings: tuple[Happening, ...]
    moment: Moment | None = None


class Opening(Struct, frozen=True, kw_only=True):
    """What a page gets first: the last minutes, and the settings in force."""

    moments: tuple[Moment, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
