"""Everything a running kvguard goes by that may change without a restart: built whole, then put in place at once."""

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Protocol

from kvguard.admission.condition import SignalPolicy
from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.waiting import WaitingPolicy
from kvguard.engines.kind import EngineKind
from kvguard.errors import SettingsError
from kvguard.policy_sections import tenant_table
from kvguard.pool.health import HealthPolicy
from kvguard.pool.pool import RoutingPolicy
from kvguard.protocols.routes import VLLM, RouteTable
from kvguard.protocols.tgi_routes import TGI
from kvguard.proxy.candidate import CandidatePolicy
from kvguard.proxy.controller import Controller
from kvguard.proxy.exchange import Patience
from kvguard.proxy.governance import Governance
from kvguard.proxy.identity import Caller, IdentityPolicy
from kvguard.proxy.pipeline import PipelinePolicy
from kvguard.settings import Settings
from kvguard.telemetry.in_force import InForce
from kvguard.telemetry.metrics import Metrics


class _Path(Protocol):
    policy: PipelinePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What the settings come to; `occupancy` but for the capacity of each backend. Metrics tell what is `in_force`."""

    governance: Governance
    retry: RetryPolicy
    waiting: WaitingPolicy
    path: PipelinePolicy
    lengths: LengthPolicy
    signals: SignalPolicy
    occupancy: OccupancyPolicy
    routing: RoutingPolicy
    health: HealthPolicy
    in_force: InForce


@dataclass(frozen=True, slots=True, kw_only=True)
class Followers:
    """Whatever goes by policies."""

    controller: Controller
    paths: tuple[_Path, ...]
    metrics: Metrics

    def follow(self, policies: Policies) -> None:
        """Put all of them in place. Reservations stay as they are."""
        self.controller.governance = policies.governance
        self.controller.returning.policy = policies.retry
        self.controller.room.policy = policies.waiting
        for path in self.paths:
            path.policy = policies.path
        self.controller.pool.policy = policies.routing
        for backend in self.controller.backends:
            capacity = backend.occupancy.policy.capacity
            backend.occupancy.policy = dataclasses.replace(policies.occupancy, capacity=capacity)
            backend.health.policy = policies.health
            backend.bars.clear()
            backend.occupancy.lengths.follow(policies.lengths)
            backend.watch.policy = policies.signals
        self.metrics.settings.put(policies.in_force)


def policies_of(settings: Settings) -> Policies:
    """Build every policy. Raises SettingsError."""
    governance, lengths = governance_of(settings), settings.forecast.policy()
    return Policies(
        governance=governance,
        retry=settings.reject.policy(),
        waiting=settings.waiting.policy(),
        path=pipeline_policy(settings),
        lengths=lengths,
        signals=settings.signal_policy(),
        occupancy=settings.occupancy_policy(),
        routing=settings.routing.policy(),
        health=settings.health.policy(),
        in_force=InForce(
            config_hash=config_hash(settings),
            tiers=governance.table.default.tiers,
            lengths=lengths,
            tenants=frozenset(settings.tenant_names()),
            shadowed=governance.shadowed,
        ),
    )


def routes_of(settings: Settings) -> RouteTable:
    """What passes: the backends are all of one kind."""
    return TGI if settings.backends[0].kind is EngineKind.TGI else VLLM


def governance_of(settings: Settings) -> Governance:
    """Who is decided on by which policy. Raises SettingsError when an override is for a route there is not."""
    routes, known = {route for each in settings.overrides for route in each.routes}, routes_of(settings).generating
    unknown = sorted(routes - known.keys())
    if unknown:
        raise SettingsError([f"overrides: {route}: no such route; there are {', '.join(known)}" for route in unknown])
    table, chosen = settings.policy_plan().table(), settings.identity
    identity = IdentityPolicy(
        tenant_header=chosen.tenant_header.encode() if chosen.tenant_header else None,
        priority_header=chosen.priority_header.encode() if chosen.priority_header else None,
        trusted=chosen.trusted_proxies,
        keys={name: Caller(tenant=key.tenant, priority=key.priority) for name, key in chosen.keys.items()},
        tenant_per_key=chosen.tenant_per_key,
        classes=frozenset(table.classes),
    )
    tenants = tenant_table(settings.tenants)
    return Governance(table=table, tenants=tenants, identity=identity, shadowed=settings.shadowed())


def pipeline_policy(settings: Settings) -> PipelinePolicy:
    """What the request path needs to know of the settings."""
    return PipelinePolicy(
        ask_usage=settings.streams.ask_usage,
        heartbeat_seconds=settings.streams.heartbeat_seconds,
        first_event_seconds=settings.streams.first_event_seconds,
        max_body_bytes=settings.limits.max_body_bytes,
        retry_after_seconds=settings.reject.retry_min_seconds,
        statuses=settings.reject.status,
        patience=Patience(body_seconds=settings.limits.body_seconds, stall_seconds=settings.limits.stall_seconds),
        candidates=CandidatePolicy(
            assumed_output_tokens=settings.tokens.assumed_output_tokens,
            session_header=settings.routing.session_header.encode() if settings.routing.session_header else None,
        ),
    )


def config_hash(settings: Settings) -> str:
    """Short fingerprint of the settings in force, the same for the same settings."""
    return hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:12]
