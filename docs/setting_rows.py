"""What the page of settings says of one besides its name: what it may be, and the incidents it is there for."""

import enum
import types
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo

from kvguard.section import LEAST_SECONDS, SecondsOrZero

CASES: Final = Path(__file__).parents[1] / "tests" / "cases"
# Each case from the field has its story in the test of that number.
INCIDENTS: Final = {
    "listen.admin_port": (46,),
    "listen.prestop_seconds": (35,),
    "listen.drain_seconds": (35,),
    "listen.ready_without_backend": (33,),
    "backends[].url": (2,),
    "backends[].capacity_blocks": (4,),
    "backends[].kv_usage_metric": (1,),
    "backends[].geometry": (14,),
    "backends[].mode": (42,),
    "backends[].tgi.max_batch_total_tokens": (8,),
    "mode": (42,),
    "share": (41,),
    "tiers.reject_signals": (5, 11),
    "tiers.exit_margin": (7,),
    "tiers.min_dwell_seconds": (7,),
    "degrade.floor_tokens": (26,),
    "degrade.trim_tools": (26,),
    "degrade.trim_structured_output": (26,),
    "degrade.reasoning_models": (26,),
    "degrade.collapse_n": (13, 15),
    "classes[].shadow": (42,),
    "overrides[].models": (20,),
    "tenants[].max_share": (44,),
    "identity.trusted_proxies": (48,),
    "identity.keys": (49,),
    "reject.status": (22,),
    "reject.retry_min_seconds": (21,),
    "telemetry.timeout_seconds": (6,),
    "telemetry.stale_after_seconds": (3,),
    "telemetry.when_blind": (3, 4),
    "signals.stall_seconds": (34,),
    "tokens.tokenizer": (17, 19),
    "tokens.aliases": (20,),
    "tokens.media": (18,),
    "tokens.exact_max_bytes": (19,),
    "tokens.assumed_output_tokens": (12,),
    "limits.max_body_bytes": (47,),
    "limits.stall_seconds": (27,),
    "streams.heartbeat_seconds": (31,),
    "upstream.idle_timeout_seconds": (30,),
    "upstream.keepalive_seconds": (24,),
    "upstream.max_connections": (32,),
    "reload.interval_seconds": (36,),
}


def incidents(name: str) -> str:
    """A sentence for each, empty for a setting that is there for none."""
    return "".join(f" *{_title(number)}*" for number in INCIDENTS.get(name, ()))


def _title(number: int) -> str:
    first = (CASES / f"test_o{number:02}.py").read_text().split("\n", 1)[0]
    return first.strip('"').split(". ")[0].rstrip(".") + "."


def allowed(field: FieldInfo) -> str:
    """What a setting may be, as far as that is not plain from its meaning."""
    return _allowed(field.annotation, tuple(field.metadata))


def _allowed(kind: Any, metadata: tuple[Any, ...]) -> str:
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        return _allowed(inner, (*metadata, *more))
    if get_origin(kind) in (Union, types.UnionType):
        parts = [part for part in get_args(kind) if part is not type(None)]
        return _allowed(parts[0], metadata) if len(parts) == 1 else "text"
    if get_origin(kind) is Literal:
        return _listed(get_args(kind))
    if get_origin(kind) in (tuple, list):
        return _entries(get_args(kind)[0])
    if get_origin(kind) is dict:
        return "mapping"
    return _plain(kind, metadata)


def _plain(kind: Any, metadata: tuple[Any, ...]) -> str:
    if kind is bool:
        return "true, false"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _listed([each.value for each in kind])
    if kind in (int, float):
        return _bounds(metadata)
    return "mapping" if isinstance(kind, type) and issubclass(kind, BaseModel) else "text"


def _entries(kind: Any) -> str:
    inner = _allowed(kind, ())
    return "list" if inner in ("mapping", "text") else f"list of {inner}"


def _listed(values: Any) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _bounds(metadata: tuple[Any, ...]) -> str:
    """The bounds of a number; a time that may be off is off or sensible."""
    if any(isinstance(each, AfterValidator) for each in metadata) and set(metadata) >= _OFF:
        return f"0, or at least {LEAST_SECONDS}"
    low, high = _bound(metadata, "ge", "gt"), _bound(metadata, "le", "lt")
    match low, high:
        case (None, None):
            return "any number"
        case (None, (sign, most)):
            return f"at most {most}" if sign == "le" else f"below {most}"
        case ((sign, least), None):
            return f"at least {least}" if sign == "ge" else f"above {least}"
        case ((above, least), (below, most)):
            ends = [f"not {end}" for sign, end in ((above, least), (below, most)) if sign in ("gt", "lt")]
            return ", ".join([f"{least} to {most}", *ends])
    raise AssertionError(metadata)


def _bound(metadata: tuple[Any, ...], *names: str) -> tuple[str, object] | None:
    for each in _flat(metadata):
        for name in names:
            if getattr(each, name, None) is not None:
                return name, getattr(each, name)
    return None


def _flat(metadata: tuple[Any, ...]) -> list[Any]:
    found: list[Any] = []
    for each in metadata:
        found += each.metadata if isinstance(each, FieldInfo) else [each]
    return [each for each in found if isinstance(each, annotated_types.BaseMetadata)]


_OFF: Final = frozenset(each for each in get_args(SecondsOrZero) if isinstance(each, AfterValidator))
