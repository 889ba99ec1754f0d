"""A request that vLLM takes is one it still takes after kvguard has shortened or narrowed it."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from kvguard.admission.footprint import Trait
from kvguard.admission.policy import DegradePolicy, degrade
from kvguard.admission.tiers import Tier
from kvguard.protocols.request import InferenceRequest
from kvguard.protocols.rewrite import rewrite
from kvguard.protocols.routes import VLLM
from tests.vllm.examples import POOLING, Body
from tests.vllm.rewritable import CAP, REWRITABLE
from tests.vllm.server import VllmServer

pytestmark = pytest.mark.anyio

AT_ONCE = 8
TRIMMED = 3
CONTEXT_TOKENS = 2048
PROMPT_TOKENS = 12

TRIMMING = DegradePolicy(trim_factor=TRIMMED / CAP, max_output_tokens=TRIMMED, floor_tokens=1)
# As far as settings go: what reasons is never shortened.
UNTRIMMED = (TRIMMING.untrimmed, frozenset({Trait.REASONING}))
POLICIES = [replace(TRIMMING, untrimmed=traits, collapse_n=n) for n in (False, True) for traits in UNTRIMMED]


def degraded(request: InferenceRequest) -> Iterator[bytes]:
    """What the request may become, by tier and by settings."""
    demand = request.demand((PROMPT_TOKENS,), context_tokens=CONTEXT_TOKENS, assumed_output_tokens=512)
    for policy in POLICIES:
        for tier in (Tier.NORMAL, Tier.TRIM, Tier.RESTRICT):
            _, degradation = degrade(demand, tier, policy)
            yield rewrite(request, degradation, ask_usage=True).body


def failure_of(answer: httpx.Response) -> str | None:
    """Why an answer is none; a stream says so after its 200. A token of the model may read "error" as well."""
    lines = answer.content.splitlines()
    failed = any(line.startswith((b'{"error"', b'data: {"error"', b"event: error")) for line in lines)
    if answer.status_code == 200 and not failed:
        return None
    return f"{answer.status_code} {answer.text[:300]}"


@pytest.mark.parametrize("path", sorted(set(VLLM.generating) - set(POOLING)))
async def test_a_rewritten_request_is_taken(vllm_server: VllmServer, path: str) -> None:
    """As it came, and after every tier: no field that stays contradicts one that was lowered."""
    gate = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=vllm_server.url, timeout=120) as client:

        async def fault(body: Body) -> str | None:
            """The first form of this request that the engine does not take."""
            written = json.dumps(body).encode()
            async with gate:
                for form in dict.fromkeys((written, *degraded(VLLM.generating[path].parse(written)))):
                    answer = await client.post(path, content=form, headers={"content-type": "application/json"})
                    failed = failure_of(answer)
                    if failed is not None:
                        return f"{body}\n  as {form.decode()}\n  {failed}"
            return None

        faults = await asyncio.gather(*(fault(body) for body in REWRITABLE[path]))
    assert not any(faults), "\n".join(filter(None, faults))
