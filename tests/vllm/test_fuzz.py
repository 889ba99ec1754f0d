"""Malformed and odd requests by vLLM's own description of its API: kvguard answers each, and comes to no harm.

Behind kvguard is the embedded engine, which takes no time over tokens: thousands of answers as long as a context would
take the real one an hour.
"""

import asyncio
import io
import json
import random
from pathlib import Path

import httpx
import pytest

from kvguard.bootstrap import running
from kvguard.clock import SystemClock
from kvguard.protocols.routes import VLLM
from kvguard.settings import Settings
from kvguard.telemetry.log import configure_logging
from tests.vllm.client_scripts import clients_python
from tests.vllm.server import VllmServer

pytestmark = pytest.mark.anyio
PHASES = "fuzzing"
LEAST_CASES = 100
# Of the engine's control, its state, and answers that outlive their request; nobody's to reach through kvguard.
CLOSED = {
    *("/load", "/kv_event_sources", "/health", "/metrics", "/ping", "/v1/systemone", "/server_info", "/weight_info"),
    *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc", "/abort_requests"),
    *("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory", "/pause", "/resume", "/is_paused"),
    *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update", "/update_weights"),
    *("/start_draft_weight_update", "/finish_weight_update", "/update_weight_version", "/weight_checker"),
    *("/get_world_size", "/scale_elastic_ep", "/is_scaling_elastic_ep"),
    *("/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel", "/inference/v1/abort_requests"),
    *("/v1/completions/derender", "/v1/chat/completions/derender"),
}


AT_ONCE = "sim://?step_base_seconds=0&step_seconds_per_sequence=0&prefill_seconds_per_token=0"


async def fuzzed(engine: VllmServer, kvguard: str, report: Path) -> str:
    """Run schemathesis on every route that passes; what it printed."""
    paths = "|".join(sorted(path.replace("/", r"\/") for path in (*VLLM.generating, *VLLM.reads)))
    command = [
        *(str(clients_python().with_name("st")), "run", f"{engine.url}/openapi.json", "--url", kvguard),
        *("--include-path-regex", f"^({paths})$", "--phases", PHASES, "--checks", "not_a_server_error"),
        *("--max-examples", "25", "--seed", "1", "--request-timeout", "5", "--continue-on-failure", "--no-color"),
        *("--generation-deterministic", "--suppress-health-check", "all"),
        *("--report", "json", "--report-json-path", str(report)),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=report.parent
    )
    printed, _ = await process.communicate()
    return printed.decode()


async def test_whatever_is_sent_ends_in_an_answer(idle_vllm: VllmServer, tmp_path: Path) -> None:
    """No fault of kvguard's own, nothing left in the ledger, nothing counted twice."""
    log_stream = io.StringIO()
    settings = Settings(
        backends=[{"url": AT_ONCE, "name": "sim"}], listen={"host": "127.0.0.1", "port": 0, "admin_port": 0}
    )
    logger = configure_logging("debug", log_stream)
    async with running(settings, clock=SystemClock(), rng=random.Random(1), logger=logger) as service:
        await service.members.ready.wait()
        print(await fuzzed(idle_vllm, f"http://127.0.0.1:{service.port}", tmp_path / "report.json"))
        ledger = service.controller.backends[0].ledger
        async with httpx.AsyncClient(trust_env=False) as client:
            while ledger.live:  # clients that left
                await client.get(f"http://127.0.0.1:{service.admin_port}/healthz")
    written = log_stream.getvalue()
    events = [json.loads(line)["event"] for line in written.splitlines()]
    assert (events.count("fault"), "Traceback" in written) == (0, False), written
    assert events.count("decision") >= LEAST_CASES
    assert ledger.violations == 0


def test_everything_vllm_describes_is_known(idle_vllm: VllmServer) -> None:
    """Each of its routes goes through admission, passes as a harmless read, or is closed on purpose."""
    described = httpx.get(f"{idle_vllm.url}/openapi.json", timeout=30).json()["paths"]
    assert {path for path in described if path not in VLLM.generating and path not in VLLM.reads} == CLOSED
