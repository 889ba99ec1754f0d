"""Which terms a request is decided on: its policy, its class, its tenant's due, and whether all that is only tried out.

One immutable value holds everything, so that it is exchanged in one assignment when the settings change.
"""

from dataclasses import dataclass, field
from typing import Self

from kvguard.admission.decision import AdmissionPolicy
from kvguard.admission.policies import PolicyTable, PriorityClass
from kvguard.admission.shares import TenantPolicy, TenantTable
from kvguard.proxy.identity import ANYBODY, Caller, IdentityPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What one request is decided by, and who sent it. On `shadowed` backends nothing is done to it."""

    policy: AdmissionPolicy
    caller: Caller = ANYBODY
    priority: PriorityClass = field(default_factory=PriorityClass)
    tenant: TenantPolicy = field(default_factory=TenantPolicy)
    shadowed: frozenset[str] = frozenset()

    def shadow_on(self, backend: str) -> bool:
        """Whether a decision of this backend is only reported."""
        return self.priority.shadow or backend in self.shadowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Governance:
    """The terms of every request. `shadowed` names the backends in shadow mode."""

    table: PolicyTable
    tenants: TenantTable = field(default_factory=TenantTable)
    identity: IdentityPolicy = field(default_factory=IdentityPolicy)
    shadowed: frozenset[str] = frozenset()

    @classmethod
    def plain(cls, policy: AdmissionPolicy) -> Self:
        """One policy for everybody."""
        return cls(table=PolicyTable.plain(policy))

    def terms(self, route: str = "", model: str | None = None, caller: Caller = ANYBODY) -> Terms:
        """The terms of one request."""
        return self._terms(self.table.of(model, route, caller.priority), caller)

    def possible(self, route: str = "", caller: Caller = ANYBODY) -> tuple[Terms, ...]:
        """The terms it may turn out to have, while its model is not known."""
        return tuple(self._terms(policy, caller) for policy in self.table.possible(route, caller.priority))

    def _terms(self, policy: AdmissionPolicy, caller: Caller) -> Terms:
        return Terms(
            policy=policy,
            caller=caller,
            priority=self.table.class_of(caller.priority),
            tenant=self.tenants.of(caller.tenant),
            shadowed=self.shadowed,
        )
