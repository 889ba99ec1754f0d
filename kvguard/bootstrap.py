"""The composition root: builds every object once, starts what runs, and stops it in order. No rule of its own."""

import asyncio
import contextlib
import functools
import importlib
import logging
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from prometheus_client import CollectorRegistry, disable_created_metrics

from kvguard import __version__
from kvguard.admission.lengths import OutputLengths
from kvguard.alert_push import AlertPush
from kvguard.backend_sections import SIMULATED, SIMULATED_TGI, SIMULATED_VLLM, TGI_PREFIX, BackendSettings
from kvguard.clock import Clock
from kvguard.counting import build_counter
from kvguard.discovery import Resolver
from kvguard.engines.kind import EngineKind
from kvguard.errors import SettingsError, UpstreamError, UpstreamUnreachable
from kvguard.lifecycle import Lifecycle
from kvguard.members import Members
from kvguard.policies import (
    Followers,
    config_hash,
    pipeline_policy,
    policies_of,
    routes_of,
    shown_settings,
)
from kvguard.proxy.admin import create_admin
from kvguard.proxy.app import TrafficApp
from kvguard.proxy.controller import Controller
from kvguard.proxy.explain import Explainer, ExplainPort
from kvguard.proxy.live import Live, live_routes
from kvguard.proxy.pipeline import Pipeline
from kvguard.proxy.upstream import AiohttpUpstream, Upstream, UpstreamLimits, UpstreamRequest
from kvguard.reload import Reloader, SettingsFile
from kvguard.sections import ListenSettings
from kvguard.server import bind, serving
from kvguard.settings import Settings
from kvguard.simulator.app import create_app
from kvguard.simulator.config import SimConfig, tgi_sim, vllm_sim
from kvguard.simulator.tgi_app import create_tgi_app
from kvguard.simulator.tgi_config import TgiSimConfig
from kvguard.state import StateFile
from kvguard.telemetry.alerts import TierAlerts
from kvguard.telemetry.collector import PoolCollector
from kvguard.telemetry.decision_log import DecisionFile
from kvguard.telemetry.lifecycle import LifecycleCollector, LifecycleLog
from kvguard.telemetry.live.build import Facts
from kvguard.telemetry.live.record import Record
from kvguard.telemetry.log import DecisionLog
from kvguard.telemetry.metrics import Metrics
from kvguard.telemetry.reporter import Reporter
from kvguard.tokenization.counter import CountSource, PromptCounter

LOOPBACK = "127.0.0.1"
MAX_TOKENIZE_ANSWER_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running kvguard."""

    port: int
    admin_port: int
    kind: EngineKind
    controller: Controller
    registry: CollectorRegistry
    members: Members
    lifecycle: Lifecycle
    reporter: Reporter
    reloader: Reloader | None = None


@contextlib.asynccontextmanager
async def running(
    settings: Settings,
    *,
    clock: Clock,
    rng: random.Random,
    logger: logging.Logger,
    file: SettingsFile | None = None,
) -> AsyncIterator[Service]:
    """Run kvguard while the context lasts, following changes of `file`. Raises SettingsError when something cannot be
    built or bound.
    """
    async with contextlib.AsyncExitStack() as stack:
        listeners = _listeners(settings.listen, stack)
        asked, settings = settings, await _with_simulators(settings, clock, stack)
        registry = CollectorRegistry()
        lengths = {each.label: OutputLengths(settings.forecast.policy()) for each in settings.backends}
        metrics = _metrics(asked, registry, clock)
        record = Record(clock.now, clock.wall, lambda: metrics.settings.in_force.tenants)
        file_of_decisions = _decision_file(settings, metrics, clock, stack)
        reporter = _traced(
            Reporter(metrics, DecisionLog(logger, sample=settings.log.sample), record, file_of_decisions),
            settings,
            stack,
        )
        _push_alerts(settings, metrics, reporter, clock, logger, stack)
        controller = Controller(
            (),
            settings.admission_policy(),
            settings.reject.policy(),
            rng=rng,
            on_tier_change=reporter.tier_change,
        )
        registry.register(PoolCollector(controller.pool, clock.now, lambda: metrics.settings.in_force))
        controller.recording = file_of_decisions is not None
        await _keep_state(settings, lengths, reporter, clock, stack)
        upstream = AiohttpUpstream(_limits(settings))
        stack.push_async_callback(upstream.close)
        policy = pipeline_policy(settings)
        counter = _counter(settings, controller, clock, stack)
        pipeline = Pipeline(controller, counter, upstream, reporter, clock, policy)
        controller.on_freed = pipeline.line.pump
        metrics.watch_waiting(lambda: len(controller.room))
        table = routes_of(settings)
        app = TrafficApp(table, pipeline, controller, upstream, reporter, clock)
        members = Members(controller, lengths, reporter, clock, settings)
        stack.push_async_callback(members.close)
        steps = LifecycleLog(logger)
        lifecycle = Lifecycle(controller, app.open, pipeline.line, clock, steps, members.troubles)
        _follow_life(lifecycle, members, registry, ready_without_backend=settings.listen.ready_without_backend)
        explainer = Explainer(controller, counter, table, clock, policy)
        explain = ExplainPort(explainer, controller, reporter, clock, policy)
        followers = Followers(controller=controller, paths=(pipeline, app, explainer, explain), metrics=metrics)
        followers.follow(policies_of(asked))

        def put(new: Settings) -> None:
            followers.follow(policies_of(new))
            members.settings = new
            controller.retier(clock.now())

        _join(members, settings)
        admin = create_admin(controller, registry, clock.now, explain, reporter, lifecycle.readiness)
        facts, fault = (
            functools.partial(_facts, metrics, controller, lifecycle),
            functools.partial(reporter.fault, "live"),
        )
        live = Live(controller, record, facts, lambda: shown_settings(members.settings), clock, fault)
        admin.include_router(live_routes(live))
        _beside(stack, lifecycle.remind(), live.run())
        admin_server = await stack.enter_async_context(serving(admin, listeners[0]))
        stack.callback(lifecycle.ended)
        server = await stack.enter_async_context(serving(app, listeners[1]))
        lifecycle.close_idle = server.close_idle
        stack.callback(lifecycle.end)
        steps.started(
            version=__version__, config_hash=config_hash(asked), port=server.port, admin_port=admin_server.port
        )
        yield Service(
            port=server.port,
            admin_port=admin_server.port,
            kind=settings.backends[0].kind,
            controller=controller,
            registry=registry,
            members=members,
            lifecycle=lifecycle,
            reporter=reporter,
            reloader=_following(file, asked, put, reporter, clock, stack),
        )


def _follow_life(
    lifecycle: Lifecycle, members: Members, registry: CollectorRegistry, *, ready_without_backend: bool
) -> None:
    """Let it hear of every look at a backend, and show it to those who scrape."""
    lifecycle.ready_without_backend = ready_without_backend
    members.on_asked = lifecycle.look
    registry.register(LifecycleCollector(lambda: lifecycle.phase, lambda: lifecycle.readiness().ready))


async def _keep_state(
    settings: Settings,
    lengths: Mapping[str, OutputLengths],
    reporter: Reporter,
    clock: Clock,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Start from the state file, if there is one, and keep it while `stack` lasts."""
    if settings.forecast.state_file is not None:
        state = StateFile(settings.forecast.state_file, lengths, reporter)
        await stack.enter_async_context(state.kept(clock, settings.forecast.state_interval_seconds))


def _beside(stack: contextlib.AsyncExitStack, *runs: Coroutine[Any, Any, None]) -> None:
    """Run these while `stack` lasts."""
    for run in runs:
        stack.push_async_callback(_cancelled, asyncio.create_task(run))


def _facts(metrics: Metrics, controller: Controller, lifecycle: Lifecycle) -> Facts:
    """What the live page tells beside the backends."""
    in_force, room = metrics.settings.in_force, controller.room
    return Facts(
        version=__version__,
        phase=lifecycle.phase.value,
        ready=lifecycle.readiness().ready,
        settings_hash=in_force.config_hash,
        tiers=in_force.tiers,
        shadowed=in_force.shadowed,
        waiting=len(room),
        waiting_most=room.policy.max_requests,
    )


def simulated(backend: BackendSettings) -> BackendSettings:
    """The backend with what is known of its embedded engine, another one as it is. Raises SettingsError."""
    try:
        if backend.url.startswith(SIMULATED_TGI):
            return _with_tgi_flags(backend, tgi_sim(backend.url))
        return _with_flags(backend, vllm_sim(backend.url)) if backend.url.startswith(SIMULATED_VLLM) else backend
    except ValueError as error:
        raise SettingsError([f"backends: {backend.url}: {error}"]) from error


def _with_flags(backend: BackendSettings, config: SimConfig) -> BackendSettings:
    own = {"max_num_seqs": config.max_num_seqs, "max_num_batched_tokens": config.max_num_batched_tokens}
    return backend.model_copy(update={"engine": backend.engine.model_copy(update=own)})


def _with_tgi_flags(backend: BackendSettings, config: TgiSimConfig) -> BackendSettings:
    """What a server of the last releases keeps to itself."""
    own = {"max_batch_total_tokens": config.max_batch_total_tokens, "speculate": config.speculate}
    flags = backend.tgi.model_copy(update=own)
    return backend.model_copy(update={"tgi": flags, "block_size": backend.block_size or config.block_size})


async def _with_simulators(settings: Settings, clock: Clock, stack: contextlib.AsyncExitStack) -> Settings:
    """Start an embedded engine for every backend that is one, and put its address and its flags in place."""
    backends = [await _started(backend, clock, stack) for backend in settings.backends]
    return settings.model_copy(update={"backends": tuple(backends)})


async def _started(backend: BackendSettings, clock: Clock, stack: contextlib.AsyncExitStack) -> BackendSettings:
    if not backend.url.startswith(SIMULATED):
        return backend
    known, tgi = simulated(backend), backend.kind is EngineKind.TGI
    app = create_tgi_app(tgi_sim(backend.url), clock) if tgi else create_app(vllm_sim(backend.url), clock)
    port = (await stack.enter_async_context(serving(app, bind(LOOPBACK, 0), lifespan=True))).port
    prefix = TGI_PREFIX if tgi else ""
    return known.model_copy(update={"name": backend.label, "url": f"{prefix}http://{LOOPBACK}:{port}"})


def _metrics(settings: Settings, registry: CollectorRegistry, clock: Clock) -> Metrics:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics = Metrics(registry, version=__version__, wall=clock.wall)
    metrics.prepare(
        routes=tuple(routes_of(settings).generating),
        backends=[backend.label for backend in settings.backends if not backend.discovers],
        sources=[source.value for source in CountSource],
    )
    metrics.prepare_discovery([backend.label for backend in settings.backends if backend.discovers])
    return metrics


def _traced(reporter: Reporter, settings: Settings, stack: contextlib.AsyncExitStack) -> Reporter:
    """The reporter, writing spans too where they are wanted. Raises SettingsError without the extra."""
    if settings.tracing.enabled:
        traces = tracing()
        reporter.traces = traces.Traces(traces.exporting())
        stack.push_async_callback(reporter.traces.close)
    return reporter


def tracing() -> ModuleType:
    """What writes spans. Raises SettingsError without the extra."""
    try:
        return importlib.import_module("kvguard.telemetry.traces")
    except ImportError as error:
        raise SettingsError(["tracing.enabled: needs an extra: pip install 'kvguard[otel]'"]) from error


def _decision_file(
    settings: Settings, metrics: Metrics, clock: Clock, stack: contextlib.AsyncExitStack
) -> DecisionFile | None:
    """The decision log, written while `stack` lasts."""
    policy = settings.decision_log.policy()
    if policy is None:
        return None
    file = DecisionFile(
        policy, wall=clock.wall, tenants=lambda: metrics.settings.in_force.tenants, dropped=metrics.line_dropped
    )
    stack.enter_context(file.written())
    return file


def _listeners(listen: ListenSettings, stack: contextlib.AsyncExitStack) -> list[socket.socket]:
    """The sockets of the admin port and of the traffic port."""
    return [stack.enter_context(bind(listen.host, port)) for port in (listen.admin_port, listen.port)]


def _push_alerts(
    settings: Settings,
    metrics: Metrics,
    reporter: Reporter,
    clock: Clock,
    logger: logging.Logger,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Send tier changes to whoever is to be told, while `stack` lasts."""
    receiver = settings.alerts.receiver()
    if receiver is None:
        return
    alerts = TierAlerts(settings.alerts.policy())
    reporter.on_tier = lambda backend, tier: alerts.change(backend, tier, now=clock.now())
    _beside(stack, AlertPush(alerts, receiver, clock, logger, metrics.alert_push_failed).run())


def _following(
    file: SettingsFile | None,
    settings: Settings,
    put: Callable[[Settings], None],
    reporter: Reporter,
    clock: Clock,
    stack: contextlib.AsyncExitStack,
) -> Reloader | None:
    """Follow the settings file in the background."""
    if file is None:
        return None

    reloader = Reloader(file, settings, put, reporter, clock)
    stack.push_async_callback(_cancelled, asyncio.create_task(reloader.run()))
    return reloader


def _join(members: Members, settings: Settings) -> None:
    """Let every backend join that is named, and look up those that are not."""
    members.start(each for each in settings.backends if not each.discovers)
    if named := [each for each in settings.backends if each.discovers]:
        discovery = settings.discovery.policy()
        members.discover(named, Resolver(discovery), discovery.interval_seconds)


def _limits(settings: Settings) -> UpstreamLimits:
    chosen = settings.upstream
    return UpstreamLimits(
        connect_seconds=chosen.connect_timeout_seconds,
        idle_seconds=chosen.idle_timeout_seconds,
        keepalive_seconds=chosen.keepalive_seconds,
        max_connections=chosen.max_connections,
        pool_wait_seconds=chosen.pool_wait_seconds,
    )


def _counter(
    settings: Settings, controller: Controller, clock: Clock, stack: contextlib.AsyncExitStack
) -> PromptCounter:
    # Connections of its own: counting must not take those that generation was given.
    upstream = AiohttpUpstream(_limits(settings))
    stack.push_async_callback(upstream.close)
    post = functools.partial(_post, controller, upstream, clock)
    kind = settings.backends[0].kind
    return build_counter(settings.tokens, post, controller.parents, stack.enter_context(contextlib.ExitStack()), kind)


async def _post(
    controller: Controller, upstream: Upstream, clock: Clock, path: str, body: bytes, model: str | None
) -> tuple[int, bytes]:
    """Ask a backend that serves the model and answers; the body of the answer is bounded."""
    backend = controller.reachable(model, clock.now())
    if backend is None:
        raise UpstreamUnreachable("no backend is known")
    headers = [(b"content-type", b"application/json")]
    request = UpstreamRequest(method="POST", base_url=backend.url, target=path, headers=headers, body=body)
    answer = await upstream.send(request)
    try:
        received = bytearray()
        async for block in answer.blocks():
            received += block
            if len(received) > MAX_TOKENIZE_ANSWER_BYTES:
                raise UpstreamError("the answer is too long")
        return answer.status, bytes(received)
    finally:
        answer.abort()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
