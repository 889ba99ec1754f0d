"""The composition root: builds every object once, starts what runs, and stops it in order. No rule of its own."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, disable_created_metrics

from kvguard import __version__
from kvguard.admission.blocks import PoolLayout
from kvguard.admission.capacity import CapacityPolicy
from kvguard.clock import Clock
from kvguard.counting import build_counter
from kvguard.engines.vllm import parse_vllm
from kvguard.engines.vllm_blocks import BLOCK_SIZE, EngineSettings, vllm_layout
from kvguard.errors import SettingsError, UpstreamError
from kvguard.estimate.source import find_source
from kvguard.modelspec.config import Serving, kv_cache_spec
from kvguard.policies import Followers, config_hash, governance_of, pipeline_policy, policies_of
from kvguard.poller import Poller, PollPolicy
from kvguard.pool.backend import Backend, new_backend
from kvguard.protocols.routes import VLLM
from kvguard.proxy.admin import create_admin
from kvguard.proxy.app import TrafficApp
from kvguard.proxy.controller import Controller
from kvguard.proxy.explain import Explainer, ExplainPort
from kvguard.proxy.pipeline import Pipeline
from kvguard.proxy.upstream import AiohttpUpstream, Upstream, UpstreamLimits, UpstreamRequest
from kvguard.reload import Reloader, SettingsFile
from kvguard.sections import BackendSettings, EngineFlags
from kvguard.server import bind, serving
from kvguard.settings import Settings
from kvguard.simulator.app import create_app
from kvguard.simulator.config import SimConfig, parse_sim_url
from kvguard.state import StateFile, check_writable
from kvguard.telemetry.decision_log import DecisionFile, check_appendable
from kvguard.telemetry.log import DecisionLog
from kvguard.telemetry.metrics import Metrics, PoolCollector
from kvguard.telemetry.reporter import Reporter
from kvguard.tokenization.counter import CountSource, PromptCounter

LayoutOf = Callable[[int], PoolLayout]

LOOPBACK = "127.0.0.1"
MAX_TOKENIZE_ANSWER_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running kvguard."""

    port: int
    admin_port: int
    controller: Controller
    registry: CollectorRegistry
    ready: asyncio.Event
    pollers: tuple[Poller, ...]
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
        listen = settings.listen
        listeners = [stack.enter_context(bind(listen.host, port)) for port in (listen.admin_port, listen.port)]
        asked, settings = settings, await _with_simulators(settings, clock, stack)
        registry = CollectorRegistry()
        backends = [build_backend(settings, backend) for backend in settings.backends]
        metrics = _metrics(asked, registry, backends, clock)
        file_of_decisions = _decision_file(settings, metrics, clock, stack)
        reporter = Reporter(metrics, DecisionLog(logger), file_of_decisions)
        controller = Controller(
            backends,
            settings.admission_policy(),
            settings.reject.policy(),
            rng=rng,
            on_tier_change=reporter.tier_change,
        )
        controller.recording = file_of_decisions is not None
        if settings.forecast.state_file is not None:
            state = StateFile(settings.forecast.state_file, backends, reporter)
            await stack.enter_async_context(state.kept(clock, settings.forecast.state_interval_seconds))
        upstream = AiohttpUpstream(_limits(settings))
        stack.push_async_callback(upstream.close)
        policy = pipeline_policy(settings)
        counter = _counter(settings, controller, clock, stack)
        pipeline = Pipeline(controller, counter, upstream, reporter, clock, policy)
        controller.on_freed = pipeline.line.pump
        metrics.watch_waiting(lambda: len(controller.room))
        app = TrafficApp(VLLM, pipeline, controller, upstream, reporter, clock)
        pollers = _pollers(settings, controller, reporter, clock)
        ready = _start(pollers, controller, reporter, clock, stack)
        explainer = Explainer(controller, counter, VLLM.generating, clock, policy)
        explain = ExplainPort(explainer, controller, reporter, clock, policy)
        followers = Followers(controller=controller, paths=(pipeline, app, explainer, explain), metrics=metrics)
        followers.follow(policies_of(asked, backends))
        admin = create_admin(controller, registry, clock.now, explain)
        admin_port = await stack.enter_async_context(serving(admin, listeners[0]))
        port = await stack.enter_async_context(serving(app, listeners[1]))
        yield Service(
            port=port,
            admin_port=admin_port,
            controller=controller,
            registry=registry,
            ready=ready,
            pollers=pollers,
            reloader=_following(file, asked, followers, reporter, clock, stack),
        )
        controller.draining = True
        pipeline.line.dismiss()


def find_faults(settings: Settings) -> None:
    """Try everything that is built from the settings. Raises SettingsError with all that cannot be."""
    faults: list[str] = []
    attempts: list[Callable[[], object]] = [
        functools.partial(build_backend, settings, each) for each in settings.backends
    ]
    attempts += [functools.partial(sim_config, each) for each in settings.backends if each.url.startswith("sim://")]
    attempts += [functools.partial(_try_counters, settings), functools.partial(governance_of, settings)]
    if settings.forecast.state_file is not None:
        attempts.append(functools.partial(check_writable, settings.forecast.state_file))
    if settings.decision_log.path is not None:
        attempts.append(functools.partial(check_appendable, settings.decision_log.path))
    for attempt in attempts:
        try:
            attempt()
        except SettingsError as error:
            faults += error.faults
    if faults:
        raise SettingsError(faults)


def _try_counters(settings: Settings) -> None:
    with contextlib.ExitStack() as stack:
        build_counter(settings.tokens, None, dict, stack)


def sim_config(backend: BackendSettings) -> SimConfig:
    """The embedded engine behind a `sim://` address. Raises SettingsError."""
    try:
        return parse_sim_url(backend.url)
    except ValueError as error:
        raise SettingsError([f"backends: {backend.url}: {error}"]) from error


async def _with_simulators(settings: Settings, clock: Clock, stack: contextlib.AsyncExitStack) -> Settings:
    """Start an embedded engine for every `sim://` backend and put its address and its flags in place."""
    backends = [await _started(backend, clock, stack) for backend in settings.backends]
    return settings.model_copy(update={"backends": tuple(backends)})


async def _started(backend: BackendSettings, clock: Clock, stack: contextlib.AsyncExitStack) -> BackendSettings:
    if not backend.url.startswith("sim://"):
        return backend
    config = sim_config(backend)
    port = await stack.enter_async_context(serving(create_app(config, clock), bind(LOOPBACK, 0), lifespan=True))
    own = {"max_num_seqs": config.max_num_seqs, "max_num_batched_tokens": config.max_num_batched_tokens}
    engine = backend.engine.model_copy(update=own)
    return backend.model_copy(update={"name": backend.label, "url": f"http://{LOOPBACK}:{port}", "engine": engine})


def build_backend(settings: Settings, chosen: BackendSettings, layout_of: LayoutOf | None = None) -> Backend:
    """A backend as the settings have it; nothing is known of its load. `layout_of` stands in for its geometry."""
    layout_of = layout_of or _layout_of(chosen)
    capacity = CapacityPolicy(blocks=chosen.capacity_blocks, block_size=chosen.block_size, layout_of=layout_of)
    policy = settings.occupancy_policy(capacity)
    backend = new_backend(chosen.label, chosen.url, policy, settings.forecast.policy(), settings.signal_policy())
    backend.context_tokens, backend.max_num_seqs = chosen.context_tokens, chosen.engine.max_num_seqs
    return backend


def _layout_of(chosen: BackendSettings) -> LayoutOf | None:
    """How the engine lays the model out, given the block size of its pool; None without the model's geometry."""
    if chosen.geometry is None:
        return None
    try:
        return layout_from(find_source(chosen.geometry).config, chosen.engine)
    except ValueError as error:
        raise SettingsError([f"backends: {chosen.label}: geometry: {error}"]) from error


def layout_from(config: Mapping[str, object], flags: EngineFlags) -> LayoutOf:
    """How an engine with these flags lays out the model of a `config.json`. Raises ValueError."""
    serving = Serving(kv_cache_dtype=flags.kv_cache_dtype, mamba_ssm_cache_dtype=flags.mamba_ssm_cache_dtype)

    def layout_of(block_size: int) -> PoolLayout:
        return vllm_layout(spec, dataclasses.replace(engine, block_size=block_size))

    names = {field.name for field in dataclasses.fields(EngineSettings)}
    engine = EngineSettings(**flags.model_dump(include=names))
    spec = kv_cache_spec(config, serving)
    layout_of(BLOCK_SIZE)
    return layout_of


def _metrics(settings: Settings, registry: CollectorRegistry, backends: Sequence[Backend], clock: Clock) -> Metrics:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics = Metrics(registry, version=__version__, config_hash=config_hash(settings))
    metrics.prepare(
        routes=tuple(VLLM.generating),
        backends=[backend.name for backend in backends],
        sources=[source.value for source in CountSource],
    )
    registry.register(PoolCollector(backends, clock.now, lambda: metrics.tenants))
    return metrics


def _decision_file(
    settings: Settings, metrics: Metrics, clock: Clock, stack: contextlib.AsyncExitStack
) -> DecisionFile | None:
    """The decision log, written while `stack` lasts."""
    policy = settings.decision_log.policy()
    if policy is None:
        return None
    file = DecisionFile(policy, wall=clock.wall, tenants=lambda: metrics.tenants, dropped=metrics.line_dropped)
    stack.enter_context(file.written())
    return file


def _following(
    file: SettingsFile | None,
    settings: Settings,
    followers: Followers,
    reporter: Reporter,
    clock: Clock,
    stack: contextlib.AsyncExitStack,
) -> Reloader | None:
    """Follow the settings file in the background."""
    if file is None:
        return None

    def put(new: Settings) -> None:
        followers.follow(policies_of(new, followers.controller.backends))
        followers.controller.retier(clock.now())

    reloader = Reloader(file, settings, put, reporter, clock)
    stack.push_async_callback(_cancelled, asyncio.create_task(reloader.run()))
    return reloader


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
    return build_counter(settings.tokens, post, controller.parents, stack.enter_context(contextlib.ExitStack()))


async def _post(
    controller: Controller, upstream: Upstream, clock: Clock, path: str, body: bytes, model: str | None
) -> tuple[int, bytes]:
    """Ask a backend that serves the model and answers; the body of the answer is bounded."""
    backend = controller.reachable(model, clock.now())
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


def _pollers(settings: Settings, controller: Controller, reporter: Reporter, clock: Clock) -> tuple[Poller, ...]:
    pollers = []
    for backend, chosen in zip(controller.backends, settings.backends, strict=True):
        policy = PollPolicy(
            interval_seconds=settings.telemetry.interval_seconds,
            timeout_seconds=settings.telemetry.timeout_seconds,
            learn_context=chosen.context_tokens is None,
        )
        parse = functools.partial(parse_vllm, kv_usage_metric=chosen.kv_usage_metric)
        pollers.append(Poller(backend, parse, reporter, clock, policy))
    return tuple(pollers)


def _start(
    pollers: Sequence[Poller],
    controller: Controller,
    reporter: Reporter,
    clock: Clock,
    stack: contextlib.AsyncExitStack,
) -> asyncio.Event:
    """Scrape in the background; the event is set once every backend has been asked."""
    waiting = set(range(len(pollers)))
    ready = asyncio.Event()

    def after_poll(number: int) -> None:
        controller.retier(clock.now())
        controller.on_freed()
        backend = controller.backends[number]
        geometry = backend.occupancy.policy.capacity.layout_of is not None
        reporter.sizing(backend.name, backend.review(controller.policy.tiers), geometry=geometry)
        waiting.discard(number)
        if not waiting:
            ready.set()

    for number, poller in enumerate(pollers):
        task = asyncio.create_task(poller.run(functools.partial(after_poll, number)))
        stack.push_async_callback(_cancelled, task)
    return ready


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
