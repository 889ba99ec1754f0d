"""How much of a backend one tenant may hold, so that none of them fills the cache alone.

A tenant's live reservations count at their full expected length. A backend on which nothing runs takes whatever can
run, so that a request larger than its tenant's share is not starved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvguard.admission.decision import AdmissionPolicy, Admit, Decision, Known, Reject, passes_blind
from kvguard.admission.reasons import RejectReason


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """What a tenant is due: at most `max_share` of a backend's blocks (None: no bound), and a `weight` among others."""

    max_share: float | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTable:
    """Policies of the tenants that are known by name, and of each that is not."""

    by_name: Mapping[str, TenantPolicy] = field(default_factory=dict)
    unlisted: TenantPolicy = field(default_factory=TenantPolicy)

    def of(self, tenant: str) -> TenantPolicy:
        """The policy of this tenant."""
        return self.by_name.get(tenant, self.unlisted)


def within_share(
    admit: Admit, occupancy: Known, policy: AdmissionPolicy, *, tenant: str, max_share: float | None, now: float
) -> Decision:
    """The admission, or the refusal in its place when the tenant would then hold more than its share."""
    capacity, ledger = occupancy.capacity, occupancy.ledger
    if max_share is None or capacity is None or policy.exempt:
        return admit
    held = ledger.tenant_blocks(tenant)
    over = held + admit.demand.reserved_blocks(capacity.rule) - max_share * capacity.blocks
    if over <= _ROUNDING or occupancy.idle(now) or passes_blind(occupancy, policy, now):
        return admit
    # Blocks come free for everybody; the tenant's own are in proportion to what it holds of all.
    part = min(over / held, 1.0) if held else 1.0
    needed = part * ledger.reserved_blocks
    return Reject(tier=admit.tier, reason=RejectReason.TENANT_SHARE, ratios=admit.ratios, needed_blocks=needed)


_ROUNDING = 1e-9  # of a share times a capacity, in blocks
