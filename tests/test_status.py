"""`kvguard status` against a real admin port, and against what is none."""

import asyncio
import json
import sys

import pytest

from kvguard.status import lines
from kvguard.telemetry.live.build import snapshot
from kvguard.telemetry.live.record import Record
from tests.kit.explaining import NOW, backend_at
from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, exposition, running_stub
from tests.telemetry.live.test_build import FACTS

pytestmark = pytest.mark.anyio


async def status(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and complaints of the command; its output is no terminal."""
    command = [sys.executable, "-m", "kvguard", "status", *arguments]
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    run = await asyncio.create_subprocess_exec(*command, **pipes)
    out, err = await run.communicate()
    return run.returncode, out.decode(), err.decode()


def admin(guard: Guard) -> str:
    return f"http://127.0.0.1:{guard.service.admin_port}"


async def test_it_says_what_the_page_says() -> None:
    """Once, without colours, because the output is no terminal."""
    async with running_stub(Stub(page=exposition(0.99))) as stub, guarding(stub) as guard:
        await guard.complete("hi", max_tokens=5)
        code, out, err = await status("--url", admin(guard))
    assert (code, err) == (0, "")
    first, *rest = out.splitlines()
    assert first == "Overload: the server is full, new requests are refused"
    assert "  who      Of 1 requests in the last 60 s 1 refused." in rest
    assert any(line.startswith("b0  REJECT") for line in rest)
    assert any("refused, because the cache is full" in line for line in rest)
    assert "\x1b" not in out


async def test_as_json_it_is_the_snapshot() -> None:
    """For other programs."""
    async with running_stub(Stub(page=exposition(0.5))) as stub, guarding(stub) as guard:
        code, out, _ = await status("--url", admin(guard) + "/", "--json")
    assert (code, json.loads(out)["servers"][0]["telemetry"]) == (0, "fresh")


async def test_nobody_there_is_said_in_one_line() -> None:
    """No kvguard, an address that is none, and a server that is something else."""
    async with running_stub(Stub(page=exposition(0.5))) as stub, guarding(stub) as guard:
        for url, words in (
            ("http://127.0.0.1:1", "no kvguard answers at http://127.0.0.1:1/live/snapshot (ConnectError)"),
            ("nowhere", "no kvguard answers at nowhere/live/snapshot"),
            (f"http://127.0.0.1:{guard.service.port}", "is this the admin port of a kvguard?"),
        ):
            code, out, err = await status("--url", url)
            assert (code, out, len(err.splitlines())) == (1, "", 1)
            assert words in err


def test_the_bar_shows_use_peak_and_thresholds() -> None:
    """`#` in use, `+` to come, and a letter where each tier begins."""
    taken = snapshot(
        [backend_at("b0", 0.5), backend_at("b1", None)], Record(lambda: NOW, lambda: 1e9), FACTS, now=NOW, wall=1e9
    )
    told = list(lines(taken, lambda text, tier: f"<{tier}>{text}", width=60))
    assert told[0] == "<3>Fault: b1 cannot be reached"
    assert "  [<0>##########....t..r.R] 50% now, 50% at the peak, 0 requests, demand 50%" in told
    assert "  how full it is, is not known" in told
    assert told[-1] == "kvguard 1, ready, serving, settings abc, 2 of at most 8 wait"
