"""Malformed and odd requests by vLLM's own description of its API: kvguard answers each, and comes to no harm."""

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

from kvguard.protocols.routes import GENERATING, READS
from tests.vllm.client_scripts import clients_python
from tests.vllm.server import VllmServer
from tests.vllm.test_proxy import guarded

pytestmark = pytest.mark.anyio
PHASES = "coverage,fuzzing"
LEAST_CASES = 500
# Of the engine's control, its state, and answers that outlive their request; nobody's to reach through kvguard.
CLOSED = {
    *("/load", "/kv_event_sources", "/health", "/metrics", "/ping", "/v1/systemone", "/server_info", "/weight_info"),
    *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc", "/abort_requests"),
    *("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory", "/pause", "/resume", "/is_paused"),
    *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update", "/update_weights"),
    *("/start_draft_weight_update", "/finish_weight_update", "/update_weight_version", "/weight_checker"),
    *("/get_world_size", "/scale_elastic_ep", "/is_scaling_elastic_ep"),
    *("/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel"),
}


async def fuzzed(engine: VllmServer, kvguard: str, report: Path) -> str:
    """Run schemathesis on every route that passes; what it printed."""
    paths = "|".join(sorted(path.replace("/", r"\/") for path in (*GENERATING, *READS)))
    command = [
        *(str(clients_python().with_name("st")), "run", f"{engine.url}/openapi.json", "--url", kvguard),
        *("--include-path-regex", f"^({paths})$", "--phases", PHASES, "--checks", "not_a_server_error"),
        # Answers without a cap fill the context; clients that leave are part of it.
        *("--max-examples", "10", "--seed", "1", "--request-timeout", "2", "--continue-on-failure", "--no-color"),
        *("--generation-deterministic", "--suppress-health-check", "all", "--workers", "4"),
        *("--report", "json", "--report-json-path", str(report)),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=report.parent
    )
    printed, _ = await process.communicate()
    return printed.decode()


async def test_whatever_is_sent_ends_in_an_answer(idle_vllm: VllmServer, tmp_path: Path) -> None:
    """No fault of kvguard's own, nothing left in the ledger, nothing counted twice."""
    async with guarded(idle_vllm) as guard:
        printed = await fuzzed(idle_vllm, f"http://127.0.0.1:{guard.service.port}", tmp_path / "report.json")
        print(printed, file=sys.stderr)
        faults = [line for line in guard.logs if line["event"] == "fault"]
        decisions = [line for line in guard.logs if line["event"] == "decision"]
        assert faults == []
        assert len(decisions) >= LEAST_CASES
        assert "Traceback" not in guard.log_stream.getvalue()
        await guard.until(lambda: guard.backend.ledger.live == 0)
        assert guard.backend.ledger.violations == 0
        assert (await guard.client.get("/v1/models")).status_code == 200


def test_everything_vllm_describes_is_known(idle_vllm: VllmServer) -> None:
    """Each of its routes goes through admission, passes as a harmless read, or is closed on purpose."""
    described = httpx.get(f"{idle_vllm.url}/openapi.json", timeout=30).json()["paths"]
    assert {path for path in described if path not in GENERATING and path not in READS} == CLOSED
