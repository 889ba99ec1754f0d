"""TGI's `/info` and metrics page -> `UsageSample`, for every release from 1.0 to 3.3.7 and for LoRAX.

`tgi_batch_current_max_tokens` is what the running batch has reserved. How large the cache is, TGI says in `/info` up
to 2.2 and nowhere since; `max_total_tokens`, the longest request it takes, is then all that is certain. A series
appears on the page with its first event, so that a server that has answered nothing yet is one with nothing to show.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Final

import msgspec

from kvguard.admission.release import Release
from kvguard.admission.usage import EngineUsage, LengthBuckets, UsageSample
from kvguard.engines.exposition import Sample, parse_samples
from kvguard.engines.reading import ModelEntry, Reading, ServerFacts
from kvguard.engines.tgi_blocks import (
    TgiSettings,
    Version,
    ahead_of,
    block_size_of,
    default_new_tokens,
    parse_version,
    usable_blocks,
)

PATH: Final = "/info"
EVERY_SECONDS: Final = 30.0
NEWEST: Final[Version] = (3, 3, 7)
PREFIXES: Final = ("tgi_", "lorax_")  # LoRAX is a fork of TGI 0.9.4

# What kvguard reads -> the name behind the prefix.
METRIC_NAMES: Final = {
    "reserved_tokens": "batch_current_max_tokens",
    "running": "batch_current_size",
    "waiting": "queue_size",
    "steps_total": "batch_inference_count",
    "answers_total": "request_success",
    "generation_lengths": "request_generated_tokens_bucket",
}
_CAP_ALIAS_SINCE: Final[Version] = (3, 0, 2)
_CAP_ALIAS: Final = "max_completion_tokens"
_ENGINE: Final = "0"
_ANY_MODEL: Final = "tgi"

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class _Info(msgspec.Struct):
    """The fields of every release that matter; those of old releases are missing in new ones."""

    version: str
    max_total_tokens: _Tokens
    model_id: str = ""
    max_batch_total_tokens: _Tokens | None = None
    max_concurrent_requests: _Tokens | None = None


_decoder = msgspec.json.Decoder(_Info)


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiServer:
    """What an operator knows of a TGI server that it does not say itself; None leaves it to `/info` and the release.

    `capacity_tokens` is the size of its cache as it logs it at start; `estimated_tokens` what model and memory make of
    it.
    """

    version: Version | None = None
    block_size: int | None = None
    speculate: int = 0
    prefix_caching: bool = True
    sliding_window: int | None = None
    capacity_tokens: int | None = None
    estimated_tokens: int | None = None

    def settings(self, version: Version) -> TgiSettings:
        """The server of this release."""
        return TgiSettings(
            version=version,
            block_size=self.block_size or block_size_of(version),
            speculate=self.speculate,
            prefix_caching=self.prefix_caching,
            sliding_window=self.sliding_window,
        )


def tgi_reading(server: TgiServer = TgiServer()) -> Reading:
    """How this server tells."""
    reader = _Reader(server)
    return Reading(
        facts_path=PATH,
        facts_seconds=EVERY_SECONDS,
        facts=reader.facts,
        usage=reader.usage,
        assumed=assumed(server),
    )


class _Reader:
    """Reads one server. Where only a lower bound of its cache is known, what it was seen to hold is another, until its
    steps are counted from 0 again: the server was started anew, perhaps elsewhere.
    """

    def __init__(self, server: TgiServer) -> None:
        self._server = server
        self._most_tokens = 0
        self._steps = 0.0

    def facts(self, body: bytes) -> ServerFacts:
        """As `parse_info`."""
        return parse_info(body, self._server)

    def usage(self, page: str, facts: ServerFacts) -> UsageSample:
        """As `parse_tgi`."""
        engine, reserved = _read(page, facts)
        if engine.steps_total is not None:
            self._most_tokens = 0 if engine.steps_total < self._steps else self._most_tokens
            self._steps = engine.steps_total
        if facts.lower_bound and facts.capacity_tokens is not None:
            facts = replace(facts, capacity_tokens=max(facts.capacity_tokens, self._most_tokens))
        self._most_tokens = max(self._most_tokens, round(reserved or 0.0))
        return UsageSample(engines=(_filled(engine, reserved, facts),))


def parse_info(body: bytes, server: TgiServer = TgiServer()) -> ServerFacts:
    """What `/info` says, and the operator where it does not. Raises ValueError (msgspec's are) for anything else.

    TGI answers to any model's name; its own are "tgi" and the id of the model.
    """
    info = _decoder.decode(body)
    version = server.version or parse_version(info.version) or NEWEST
    settings = server.settings(version)
    told = server.capacity_tokens or info.max_batch_total_tokens or server.estimated_tokens
    return ServerFacts(
        models=frozenset({_ANY_MODEL, info.model_id} - {""}),
        parents={_ANY_MODEL: info.model_id} if info.model_id else {},
        listing=_listing(info.model_id),
        context_tokens=info.max_total_tokens,
        permits=info.max_concurrent_requests,
        release=release_of(version),
        capacity_tokens=told or info.max_total_tokens,
        lower_bound=told is None,
        block_size=settings.block_size,
        ahead=ahead_of(settings),
    )


def _listing(model_id: str) -> dict[str, ModelEntry]:
    """The one entry of `/v1/models` (2.3.0 on), to the byte: it tells nothing but this name."""
    card = {"id": model_id, "object": "model", "created": 0, "owned_by": model_id}
    return {model_id: ModelEntry(body=msgspec.json.encode(card))} if model_id else {}


def assumed(server: TgiServer) -> ServerFacts:
    """What is taken of a server that nobody has asked: the newest release unless the operator names one."""
    settings = server.settings(server.version or NEWEST)
    tokens = server.capacity_tokens or server.estimated_tokens
    return ServerFacts(
        release=release_of(settings.version),
        capacity_tokens=tokens,
        block_size=settings.block_size,
        ahead=ahead_of(settings),
    )


def release_of(version: Version) -> Release:
    """How requests are understood."""
    ignored = frozenset() if version >= _CAP_ALIAS_SINCE else frozenset({_CAP_ALIAS})
    return Release(default_output_tokens=default_new_tokens(version), ignored_caps=ignored)


def parse_tgi(page: str, facts: ServerFacts) -> UsageSample:
    """Read one page. Raise ExpositionError on a broken line of a metric that is read."""
    engine, reserved = _read(page, facts)
    return UsageSample(engines=(_filled(engine, reserved, facts),))


def _read(page: str, facts: ServerFacts) -> tuple[EngineUsage, float | None]:
    """What one page says but for the cache, and the tokens that are reserved there."""
    found = next((prefix for prefix in PREFIXES if f"\n{prefix}" in f"\n{page}"), None)
    names = {f"{found or PREFIXES[0]}{name}": what for what, name in METRIC_NAMES.items()}
    series: dict[str, list[Sample]] = {what: [] for what in METRIC_NAMES}
    for sample in parse_samples(page, frozenset(names)):
        if math.isfinite(sample.value) and sample.value >= 0:
            series[names[sample.name]].append(sample)
    # A back end without a batcher has no such gauges ever; any other has them once it has answered. Nor has a page of
    # something else.
    foreign = found is None and bool(page.strip())
    begun = foreign or bool(_total(series, "answers_total"))
    reserved = _total(series, "reserved_tokens") if begun or series["reserved_tokens"] else 0.0
    usage = EngineUsage(
        engine=_ENGINE,
        running=_count(series, "running", begun=begun),
        waiting=_count(series, "waiting", begun=begun),
        steps_total=None if foreign else _total(series, "steps_total") or 0.0,
        generation_lengths=_buckets(series["generation_lengths"]),
        ahead=facts.ahead,
    )
    return usage, reserved


def _filled(usage: EngineUsage, reserved_tokens: float | None, facts: ServerFacts) -> EngineUsage:
    """How full that makes it; nothing is said of a cache of unknown size."""
    tokens, size = facts.capacity_tokens, facts.block_size
    if tokens is None or size is None:
        return usage
    blocks = usable_blocks(tokens, size)
    if blocks < 1:
        return usage
    return replace(
        usage,
        capacity_blocks=blocks,
        capacity_tokens=blocks * size,
        block_size=size,
        pool_block_size=size,
        used_ratio=None if reserved_tokens is None else reserved_tokens / (blocks * size),
    )


def _total(series: dict[str, list[Sample]], what: str) -> float | None:
    """Sum over labels; None, not 0, when there is no series."""
    return sum(sample.value for sample in series[what]) if series[what] else None


def _count(series: dict[str, list[Sample]], what: str, *, begun: bool) -> int | None:
    total = _total(series, what)
    if total is None:
        return None if begun else 0
    return round(total)


def _buckets(samples: list[Sample]) -> LengthBuckets | None:
    """In order; None where there are none."""
    buckets = []
    for sample in samples:
        try:
            buckets.append((float(sample.labels["le"]), sample.value))
        except (KeyError, ValueError):
            return None
    return tuple(sorted(buckets)) or None
