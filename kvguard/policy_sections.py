"""Groups of settings about who is treated how: identity, priority classes, tenants, overrides, reloading."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from kvguard.admission.decision import AdmissionPolicy, BlindPolicy
from kvguard.admission.policies import NORMAL, PolicyRow, PolicyTable, PriorityClass
from kvguard.admission.shares import TenantPolicy, TenantTable
from kvguard.admission.waiting import WaitingPolicy
from kvguard.faults import Fault, Given, Place, every_fault, faults_of
from kvguard.section import Positive, PositiveInt, Seconds, SecondsOrZero, Section, together
from kvguard.sections import DegradeSettings, TierSettings
from kvguard.telemetry.metrics import OTHER

ALL_OTHERS: Final = "*"
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_SPOKEN_FOR = re.compile(
    "accept.*|authorization|connection|content-.*|cookie|expect|host|keep-alive|proxy-.*|te|trailer|transfer-encoding|"
    "upgrade|x-kvguard-.*|x-request-id"
)
_NAME = "[A-Za-z0-9._:/+=@-]{1,128}"
AnySection = TypeVar("AnySection", bound=Section)


def _unreserved(tenant: str) -> str:
    if tenant == OTHER:
        raise ValueError(f"{OTHER} is what metrics call all tenants that the settings do not name")
    return tenant


def _network(given: object) -> IPv4Network | IPv6Network:
    """From text alone: a number is an address too, but nobody's meaning."""
    if isinstance(given, IPv4Network | IPv6Network):
        return given
    text = given if isinstance(given, str) else ""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError("must be an address or a network, such as 10.0.0.0/8; names are not looked up") from None
    if network.network_address != ip_address(text.split("/")[0]):
        raise ValueError(f"{text} goes on behind its prefix; the network is {network}")
    return network


Name = Annotated[str, Field(pattern=f"^{_NAME}$")]
Tenant = Annotated[Name, AfterValidator(_unreserved)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]


class KeySettings(Section):
    """Who holds an API key."""

    tenant: Tenant
    """Whose share its requests count towards; never `other`."""
    priority: str = NORMAL
    """Name of the class that decides on them."""


class IdentitySettings(Section):
    """Who a request is from. Nothing a client can set by itself is believed."""

    tenant_header: str | None = None
    """Header that names the tenant, e.g. `x-tenant-id`. Believed from trusted proxies; anybody else's goes nowhere."""
    priority_header: str | None = None
    """Header that names the priority class, another one; likewise."""
    trusted_proxies: tuple[Network, ...] = ()
    """Addresses or networks whose identity headers are believed, e.g. `10.0.0.0/8`. They must overwrite clients'."""
    keys: dict[str, KeySettings] = Field(default_factory=dict)
    """Callers by API key: the first 16 hex digits of the SHA-256 of the bearer token, never the token itself."""
    tenant_per_key: bool = False
    """Each API key that is not listed is a tenant of its own. Only where something else checks keys."""

    @field_validator("tenant_header", "priority_header")
    @classmethod
    def _header(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not _HEADER.fullmatch(value.lower()) or _SPOKEN_FOR.fullmatch(value.lower()):
            raise ValueError("must be a header that means nothing else")
        return value.lower()

    @field_validator("keys", mode="before")
    @classmethod
    def _no_secrets(cls, value: Any) -> Any:
        """Refused as a whole: a fault of one entry would name it, and it may be a key."""
        if isinstance(value, dict) and not all(_FINGERPRINT.fullmatch(str(name)) for name in value):
            raise ValueError("each name must be the first 16 hex digits of a key's SHA-256, in quotes; never the key")
        return value

    @model_validator(mode="after")
    def _apart(self) -> "IdentitySettings":
        if self.tenant_header is not None and self.tenant_header == self.priority_header:
            raise together("tenant_header and priority_header must differ", "tenant_header", "priority_header")
        return self


class ClassSettings(Section):
    """A priority class."""

    name: Name
    """What the header or the key calls it; `normal` is everybody else's."""
    rank: int = 0
    """Classes of lower rank go first where requests wait; `normal` has 0."""
    exempt: bool = False
    """Never degraded, nor refused for a full cache, a backlog of prompts or a tenant's share; for what must always be
    answered."""
    shadow: bool = False
    """Decisions on it are only reported, whatever `mode` says."""
    tiers: dict[str, Any] = Field(default_factory=dict)
    """Settings of `tiers` that differ for it; the tier in force is then its own too."""
    degrade: dict[str, Any] = Field(default_factory=dict)
    """Settings of `degrade` that differ for it."""


class TenantSettings(Section):
    """A tenant."""

    name: Annotated[str, Field(pattern=rf"^(\*|{_NAME})$"), AfterValidator(_unreserved)]
    """As the header or the key names it; `anonymous` is everybody without one, `*` each that is not listed. Never
    `other`: metrics call all so that the settings do not name."""
    max_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Most of a backend's blocks its running requests may come to; none is no bound."""
    weight: Positive = 1.0
    """Its turn among tenants where requests wait."""


class OverrideSettings(Section):
    """Other settings for some requests."""

    models: str = "*"
    """Pattern of model names, with `*` and `?`."""
    routes: tuple[str, ...] = ()
    """Paths, e.g. `/v1/chat/completions`; none means every."""
    tiers: dict[str, Any] = Field(default_factory=dict)
    """Settings of `tiers` that differ."""
    degrade: dict[str, Any] = Field(default_factory=dict)
    """Settings of `degrade` that differ."""


class WaitingSettings(Section):
    """A bounded wait for requests that would be refused as `saturated` or `tenant_share`; off by default."""

    max_requests: Annotated[int, Field(ge=0)] = 0
    """How many may wait at once; 0: none, a full cache is a 503 at once."""
    max_bytes: PositiveInt = 64 * 1024 * 1024
    """How large their bodies may be together."""
    max_seconds: Seconds = 2.0
    """Longest wait, then 503 `queue_timeout`. Who would wait longer by the forecast is refused at once."""

    def policy(self) -> WaitingPolicy:
        """The core's value."""
        return WaitingPolicy(max_requests=self.max_requests, max_bytes=self.max_bytes, max_seconds=self.max_seconds)


class ReloadSettings(Section):
    """Taking over changes of the settings file."""

    interval_seconds: SecondsOrZero = 2.0
    """Pause between looks at the file's content; 0 leaves only SIGHUP."""


CLASSES: Final = (
    ClassSettings(name="sheddable", rank=10, tiers={"trim_at": 0.55, "restrict_at": 0.70, "reject_at": 0.80}),
    ClassSettings(name=NORMAL),
    ClassSettings(name="critical", rank=-10, tiers={"trim_at": 0.85, "restrict_at": 0.93, "reject_at": 0.98}),
    ClassSettings(name="exempt", rank=-20, exempt=True),
)


def tenant_table(tenants: Sequence[TenantSettings]) -> TenantTable:
    """The core's value."""
    policies = {each.name: TenantPolicy(max_share=each.max_share, weight=each.weight) for each in tenants}
    unlisted = policies.pop(ALL_OTHERS, TenantPolicy())
    return TenantTable(by_name=policies, unlisted=unlisted)


class PolicyPlan:
    """Every combination of override and class: the plain settings, the override over them, the class over both."""

    def __init__(
        self,
        tiers: TierSettings,
        degrade: DegradeSettings,
        classes: Sequence[ClassSettings],
        overrides: Sequence[OverrideSettings],
        *,
        blind: BlindPolicy,
        max_prefill_backlog_tokens: int | None,
    ) -> None:
        self._tiers = tiers
        self._degrade = degrade
        self._blind = blind
        self._max_prefill_backlog_tokens = max_prefill_backlog_tokens
        implied = () if any(each.name == NORMAL for each in classes) else (ClassSettings(name=NORMAL),)
        self._classes = (*classes, *implied)
        self._overrides = overrides

    def faults(self) -> Iterator[Fault]:
        """What cannot be combined."""
        for number, override in enumerate((*self._overrides, OverrideSettings())):
            for place, each in enumerate(self._classes):
                for name, base in (("tiers", self._tiers), ("degrade", self._degrade)):
                    layers = (
                        _Layer(
                            told=f"overrides.{number}", place=("overrides", number), differs=getattr(override, name)
                        ),
                        _Layer(told=f"classes.{each.name}", place=("classes", place), differs=getattr(each, name)),
                    )
                    yield from _unfit(name, base, layers)

    def table(self) -> PolicyTable:
        """The core's value. There must be no faults."""
        rows = [
            PolicyRow(by_class=self._by_class(each), models=each.models, routes=frozenset(each.routes))
            for each in (*self._overrides, OverrideSettings())
        ]
        classes = [PriorityClass(name=each.name, rank=each.rank, shadow=each.shadow) for each in self._classes]
        return PolicyTable(rows, classes)

    def _by_class(self, override: OverrideSettings) -> dict[str, AdmissionPolicy]:
        return {each.name: self._policy(override, each) for each in self._classes}

    def _policy(self, override: OverrideSettings, chosen: ClassSettings) -> AdmissionPolicy:
        return AdmissionPolicy(
            tiers=_over(self._tiers, override.tiers, chosen.tiers).policy(),
            degrade=_over(self._degrade, override.degrade, chosen.degrade).policy(),
            blind=self._blind,
            exempt=chosen.exempt,
            max_prefill_backlog_tokens=self._max_prefill_backlog_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Differences that go over a section, where they stand, and what is said of that."""

    told: str
    place: Place
    differs: Given


def _unfit(name: str, base: Section, layers: Sequence[_Layer]) -> Iterator[Fault]:
    """Faults of the section with all layers over it, told of those layers that have to do with them."""

    def look(given: Given) -> list[Fault]:
        try:
            type(base)(**given)
        except ValidationError as error:
            return faults_of(error)
        return []

    for fault in every_fault(_laid(base, *(layer.differs for layer in layers)), look):
        settings = {place[0] for place in fault.places}
        where = " with ".join(layer.told for layer in layers if settings & layer.differs.keys())
        places = [(*layer.place, name, *place) for layer in layers for place in fault.places]
        yield Fault(text=f"{where}: {fault.text}", places=(*((name, *place) for place in fault.places), *places))


def _over(base: AnySection, *differences: Given) -> AnySection:
    """The section with what differs put over it. Raises ValidationError."""
    return type(base)(**_laid(base, *differences))


def _laid(base: Section, *differences: Given) -> Given:
    values = base.model_dump()
    for each in differences:
        values.update(each)
    return values
