"""An explainer over backends at a given load, without a server: prompts are token ids or guessed."""

import asyncio
import json
import random
from typing import Any

from kvguard.admission.condition import Condition, EngineState
from kvguard.admission.decision import AdmissionPolicy
from kvguard.admission.lengths import LengthPolicy
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.retry import RetryPolicy
from kvguard.admission.tiers import TierPolicy
from kvguard.clock import ManualClock
from kvguard.pool.backend import Backend, new_backend
from kvguard.protocols.routes import VLLM
from kvguard.proxy.controller import Controller
from kvguard.proxy.explain import Explainer
from kvguard.proxy.headers import OPT_OUT
from kvguard.proxy.pipeline import PipelinePolicy
from kvguard.tokenization.counter import PromptCounter
from kvguard.tokenization.learned import LearnedPolicy, LearnedRatios
from tests.admission.build import sample

SMALL = {"prompt": [1] * 16, "max_tokens": 160}
NOW = 100.0
POLICY = PipelinePolicy()
DEGRADE = DegradePolicy(allow_opt_out=True, reasoning_models=frozenset({"thinker"}))
COUNTER = PromptCounter(lambda _: (), LearnedRatios(LearnedPolicy()))


def backend_at(
    name: str,
    ratio: float | None,
    *,
    models: tuple[str, ...] = (),
    age: float = 0.0,
    context: int | None = 4096,
    waiting: int = 0,
    **policy: Any,
) -> Backend:
    """A backend of 100 blocks whose gauge said `ratio` so long ago, twice; None: it was never scraped."""
    backend = new_backend(name, f"http://{name}", OccupancyPolicy(**policy), LengthPolicy())
    backend.models, backend.context_tokens = frozenset(models), context
    if ratio is not None:
        for _ in range(2):
            backend.occupancy.observe(sample(ratio, waiting=waiting), asked_at=NOW - age)
    return backend


def in_condition(backend: Backend, state: EngineState, *, due: bool = False, **condition: Any) -> Backend:
    """The backend with its engine in this state, and a probe due or not."""
    backend.watch.condition = Condition(state=state, **condition)
    backend.watch._probe_from = NOW if due else NOW + 1
    return backend


def explainer_of(
    *backends: Backend, policy: PipelinePolicy = POLICY, seed: int = 0, **admission: Any
) -> tuple[Explainer, Controller]:
    chosen = AdmissionPolicy(**{"tiers": TierPolicy(), "degrade": DEGRADE, **admission})
    controller = Controller(
        backends, chosen, RetryPolicy(), rng=random.Random(seed), on_tier_change=lambda change: None
    )
    return Explainer(controller, COUNTER, VLLM, ManualClock(NOW), policy), controller


def explained(explainer: Explainer, fields: dict, *, opt_out: bool = False, path: str | None = None) -> Any:
    headers = [(OPT_OUT, b"none")] if opt_out else []
    return json.loads(json.dumps(asyncio.run(explainer.explain(json.dumps(fields).encode(), headers, path))))
