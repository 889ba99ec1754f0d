"""Configuration: file, environment and flags -> validated values -> the frozen policies the core takes.

Precedence: flag > `KVGUARD_...` environment (double underscore nests) > `kvguard.yaml` > default. Unknown keys are
faults, and every fault is reported at once. `sources` reads them; nothing else does.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Final

from pydantic import ModelWrapValidatorHandler, ValidationError, field_validator, model_validator
from pydantic_core import from_json
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from kvguard.admission.capacity import CapacityPolicy
from kvguard.admission.condition import SignalPolicy
from kvguard.admission.decision import AdmissionPolicy
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.policies import NORMAL
from kvguard.backend_sections import SIMULATED, BackendSettings, DiscoverySettings, ModeChoice
from kvguard.errors import SettingsError
from kvguard.faults import Fault, Given, faults_of, review
from kvguard.observability_sections import AlertSettings
from kvguard.policy_sections import (
    ALL_OTHERS,
    CLASSES,
    ClassSettings,
    IdentitySettings,
    OverrideSettings,
    PolicyPlan,
    ReloadSettings,
    TenantSettings,
    WaitingSettings,
)
from kvguard.pool_sections import HealthSettings, RoutingSettings
from kvguard.section import Threshold, together
from kvguard.sections import (
    DecisionLogSettings,
    DegradeSettings,
    ForecastSettings,
    LimitSettings,
    ListenSettings,
    LogSettings,
    RejectSettings,
    SignalSettings,
    StreamSettings,
    TelemetrySettings,
    TierSettings,
    TracingSettings,
    UpstreamSettings,
)
from kvguard.token_sections import TokenSettings

PREFIX: Final = "KVGUARD_"


def _numbered(backends: Iterable[BackendSettings]) -> tuple[BackendSettings, ...]:
    """Every embedded engine but the first gets a number, unless it has a name: their addresses tell nothing apart."""
    found, embedded = list[BackendSettings](), 0
    for backend in backends:
        embedded += (unnamed := backend.name is None and backend.url.startswith(SIMULATED))
        found.append(backend.model_copy(update={"name": f"sim-{embedded}"}) if unnamed and embedded > 1 else backend)
    return tuple(found)


class Settings(BaseSettings):
    """Everything an operator can set. Raises SettingsError with every fault."""

    # What the settings file says; `sources` binds it.
    file_content: ClassVar[Given] = {}
    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__", use_attribute_docstrings=True
    )

    listen: ListenSettings = ListenSettings()
    backends: Annotated[tuple[BackendSettings, ...], NoDecode] = (BackendSettings(url="sim://"),)
    """Model servers; a request goes to the one it fills least of those that serve its model."""
    routing: RoutingSettings = RoutingSettings()
    health: HealthSettings = HealthSettings()
    mode: ModeChoice = ModeChoice.ENFORCE
    """`shadow`: decide, count and log as usual, but change and refuse nothing."""
    share: Threshold = 1.0
    """Part of each backend's headroom that this proxy may claim between two looks at its gauge: 1/N with N replicas in
    front of the same backends, each of which would otherwise believe it has all of it."""
    tiers: TierSettings = TierSettings()
    degrade: DegradeSettings = DegradeSettings()
    classes: tuple[ClassSettings, ...] = CLASSES
    """Priority classes; naming any replaces those below. A class's settings go over those of an override."""
    overrides: tuple[OverrideSettings, ...] = ()
    """Other thresholds and degradations for some models or routes; the first entry that covers a request counts."""
    tenants: tuple[TenantSettings, ...] = ()
    """What each tenant may hold of a backend."""
    identity: IdentitySettings = IdentitySettings()
    reject: RejectSettings = RejectSettings()
    waiting: WaitingSettings = WaitingSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    signals: SignalSettings = SignalSettings()
    tokens: TokenSettings = TokenSettings()
    forecast: ForecastSettings = ForecastSettings()
    limits: LimitSettings = LimitSettings()
    streams: StreamSettings = StreamSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    decision_log: DecisionLogSettings = DecisionLogSettings()
    alerts: AlertSettings = AlertSettings()
    reload: ReloadSettings = ReloadSettings()

    @field_validator("backends", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        """An environment variable holds JSON, or just addresses between commas."""
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            return from_json(value)
        return [{"url": url.strip()} for url in value.split(",")]

    @field_validator("backends")
    @classmethod
    def _distinct(cls, backends: tuple[BackendSettings, ...]) -> tuple[BackendSettings, ...]:
        if not backends:
            raise ValueError("name at least one")
        backends = _numbered(backends)
        labels = [backend.label for backend in backends]
        repeated = sorted({label for label in labels if labels.count(label) > 1})
        if repeated:
            text = f"two backends are named {', '.join(repeated)}; give each a name of its own"
            raise together(text, *((number, part) for number in range(len(backends)) for part in ("url", "name")))
        found_under = tuple(f"{backend.label}/" for backend in backends if backend.discovers)
        if confused := [label for label in labels if label.startswith(found_under)]:
            text = f"{', '.join(confused)} is named as a server that is found under another name; name it otherwise"
            raise together(text, *((number, "name") for number in range(len(backends))))
        if len({backend.kind for backend in backends}) > 1:
            text = "vLLM and TGI cannot stand behind one kvguard: they read the same request differently"
            raise together(text, *((number, "url") for number in range(len(backends))))
        return backends

    @field_validator("classes", "tenants")
    @classmethod
    def _named_once(cls, named: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [each.name for each in named]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two are named {', '.join(repeated)}")
        return named

    @model_validator(mode="wrap")
    @classmethod
    def _every_fault(cls, given: Given, make: ModelWrapValidatorHandler["Settings"]) -> "Settings":
        def look(part: Given) -> list[Fault]:
            try:
                return list(make(part).faults())
            except ValidationError as error:
                return faults_of(error)

        found = review(given, look)
        if found.faults:
            sound = None if found.sound is None else make(found.sound)
            doubtful = frozenset(str(place[0]) for place in found.doubtful if place)
            raise SettingsError([fault.text for fault in found.faults], sound=sound, doubtful=doubtful)
        return make(given)

    def faults(self) -> Iterator[Fault]:
        """What sections that are in order by themselves get wrong together."""
        yield from self.policy_plan().faults()
        names = {each.name for each in self.classes} | {NORMAL}
        for digits, key in self.identity.keys.items():
            if key.priority not in names:
                yield Fault(
                    text=f"identity.keys: there is no class {key.priority}",
                    places=(("identity", "keys", digits, "priority"), ("classes",)),
                )
        if self.forecast.state_file is not None and self.forecast.state_file == self.decision_log.path:
            yield Fault(
                text="forecast.state_file and decision_log.path must differ",
                places=(("forecast", "state_file"), ("decision_log", "path")),
            )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, cls.file_content)

    def admission_policy(self) -> AdmissionPolicy:
        """The core's value for requests nothing else is said about."""
        return self.policy_plan().table().default

    def policy_plan(self) -> PolicyPlan:
        """Every policy there is, by model, route and class."""
        return PolicyPlan(
            self.tiers,
            self.degrade,
            self.classes,
            self.overrides,
            blind=self.telemetry.when_blind,
            max_prefill_backlog_tokens=self.signals.max_prefill_backlog_tokens,
        )

    def tenant_names(self) -> Iterator[str]:
        """Tenants known by name: they have metrics of their own."""
        yield from (each.name for each in self.tenants if each.name != ALL_OTHERS)
        yield from (key.tenant for key in self.identity.keys.values())

    def shadowed(self) -> frozenset[str]:
        """Backends in shadow mode, by name."""
        return frozenset(each.label for each in self.backends if (each.mode or self.mode) is ModeChoice.SHADOW)

    def signal_policy(self) -> SignalPolicy:
        """The core's value; a tier that was entered is only left below its margin."""
        return self.signals.policy(full_ratio=self.tiers.reject_at - self.tiers.exit_margin)

    def occupancy_policy(self, capacity: CapacityPolicy | None = None) -> OccupancyPolicy:
        """The core's value for one backend."""
        return OccupancyPolicy(
            stale_after_seconds=self.telemetry.stale_after_seconds,
            failures_before_unreachable=self.telemetry.failures_before_unreachable,
            queue_floor_ratio=self.telemetry.queue_floor_ratio,
            count_shared_once=self.telemetry.count_shared_once,
            share=self.share,
            engine_rule=self.telemetry.engine_rule,
            capacity=capacity or CapacityPolicy(),
        )
