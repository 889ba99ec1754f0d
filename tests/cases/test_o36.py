"""O-36: a configuration change that never arrives, or kills the proxy."""

import asyncio
import os
from pathlib import Path

import pytest

from kvguard.reload import SETTLE_SECONDS
from tests.kit.guard import Guard, guarding
from tests.kit.stub import Stub, answer_at_once, exposition, hold_until, running_stub

pytestmark = pytest.mark.anyio


class Mount:
    """A directory as Kubernetes mounts a ConfigMap: `..data` leads to the content of the moment and is swapped."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._number = 0
        self.file = root / "kvguard.yaml"
        self.file.symlink_to("..data/kvguard.yaml")

    def publish(self, text: str) -> None:
        self._number += 1
        content = self._root / f"..{self._number}"
        content.mkdir()
        (content / "kvguard.yaml").write_text(text)
        link = self._root / "..data_tmp"
        link.symlink_to(content.name)
        os.replace(link, self._root / "..data")


async def poll_time(guard: Guard) -> None:
    """Let the time pass within which a change is to be noticed."""
    await guard.advance(2.0 + SETTLE_SECONDS)
    await guard.scrape()


def config_hash(guard: Guard) -> str:
    (sample,) = [
        sample
        for family in guard.service.registry.collect()
        if family.name == "kvguard_config"
        for sample in family.samples
    ]
    return sample.labels["hash"]


def reloads(guard: Guard) -> list[dict]:
    return [line for line in guard.logs if line["event"].startswith("reload")]


async def test_a_swapped_configmap_is_in_force_within_the_poll_time(tmp_path: Path) -> None:
    """At 0.6 a request passes, after the swap to reject at 0.50 it gets 503, and a broken file changes nothing."""
    mount = Mount(tmp_path)
    mount.publish("tiers: {trim_at: 0.7}\n")
    async with running_stub(Stub(page=exposition(0.6))) as stub, guarding(stub, file=mount.file) as guard:
        await poll_time(guard)
        assert (await guard.complete()).status_code == 200
        assert reloads(guard) == []
        hashes = [config_hash(guard)]

        mount.publish("tiers: {trim_at: 0.3, restrict_at: 0.4, reject_at: 0.50}\n")
        await poll_time(guard)
        assert (await guard.complete()).status_code == 503
        hashes.append(config_hash(guard))
        assert guard.metric("kvguard_tier_threshold_ratio", tier="reject") == 0.5
        assert len(set(hashes)) == 2
        assert (reloads(guard)[-1]["level"], reloads(guard)[-1]["hash"]) == ("info", hashes[1])

        for broken in ("tiers: {reject_at: 0.2}\n", "tiers: [\n", "overrides: [{routes: [/nowhere]}]\n", "", "\n"):
            failures = guard.metric("kvguard_config_reload_failures_total")
            mount.publish(broken)
            await poll_time(guard)
            assert guard.metric("kvguard_config_reload_failures_total") == failures + 1
            assert guard.metric("kvguard_config_last_reload_successful") == 0
            assert (await guard.complete()).status_code == 503
            assert config_hash(guard) == hashes[1]
            assert (reloads(guard)[-1]["level"], reloads(guard)[-1]["event"]) == ("error", "reload_failed")
            assert reloads(guard)[-1]["faults"]

        mount.publish("tiers: {trim_at: 0.7}\n")
        await poll_time(guard)
        assert (await guard.complete()).status_code == 200
        assert config_hash(guard) == hashes[0]
        assert guard.metric("kvguard_config_last_reload_successful") == 1
        succeeded_at = guard.metric("kvguard_config_last_reload_success_timestamp_seconds")
        assert succeeded_at == pytest.approx(guard.clock.wall(), abs=SETTLE_SECONDS)


async def test_everything_in_the_policy_follows_and_what_runs_is_left_alone(tmp_path: Path) -> None:
    """Classes, tenants, identity, mode, statuses and telemetry are new; a running request keeps its reservation."""
    mount, released = Mount(tmp_path), asyncio.Event()
    mount.publish("# the defaults\n")
    stub = Stub(page=exposition(0.97))
    async with running_stub(stub), guarding(stub, mode="shadow", file=mount.file) as guard:
        stub.answer = hold_until(released)
        running = asyncio.ensure_future(guard.complete([1] * 16, max_tokens=16))
        await stub.until(lambda: len(stub.hits) == 1)
        stub.answer = answer_at_once
        mount.publish(
            """
identity: {tenant_header: x-tenant, priority_header: x-priority, trusted_proxies: [127.0.0.1]}
classes: [{name: low, tiers: {trim_at: 0.2, restrict_at: 0.3, reject_at: 0.4}}]
tenants: [{name: lab, max_share: 0.01}]
reject: {status: {saturated: 429}}
telemetry: {stale_after_seconds: 60, queue_floor_ratio: 0.5, timeout_seconds: 20}
signals: {stall_seconds: 9}
forecast: {quantile: 0.9}
limits: {max_body_bytes: 200}
"""
        )
        await poll_time(guard)
        assert guard.backend.ledger.reserved_blocks == 2
        assert guard.backend.occupancy.policy.stale_after_seconds == 60
        assert guard.backend.watch.policy.stall_seconds == 9
        answers = [
            await guard.complete([1], max_tokens=1, headers={"x-tenant": "lab", "x-priority": priority})
            for priority in ("low", "normal")
        ]
        assert [answer.status_code for answer in answers] == [200, 200]
        released.set()
        assert (await running).status_code == 200
        await guard.until(lambda: guard.backend.ledger.live == 0)
        said = [(line["tenant"], line["priority"]) for line in guard.logs if line["event"] == "decision"]
        assert said[1:] == [("lab", "low"), ("lab", "normal")]
        assert (await guard.complete("x" * 300)).status_code == 413


async def test_what_takes_a_restart_keeps_its_value_and_is_named(tmp_path: Path) -> None:
    """A warning names each such setting; what can be had is taken over all the same."""
    mount = Mount(tmp_path)
    mount.publish("# the defaults\n")
    async with running_stub(Stub(page=exposition(0.6))) as stub, guarding(stub, file=mount.file) as guard:
        mount.publish(
            "tokens: {assumed_output_tokens: 7}\nupstream: {max_connections: 3}\nreload: {interval_seconds: 9}\n"
            "tiers: {trim_at: 0.3, restrict_at: 0.4, reject_at: 0.5}\n"
        )
        await poll_time(guard)
        assert (await guard.complete()).status_code == 503
        (line,) = reloads(guard)
        assert (line["level"], line["changed"]) == ("warning", True)
        assert line["kept"] == ["tokens.assumed_output_tokens", "upstream.max_connections", "reload.interval_seconds"]


async def test_sighup_is_in_a_hurry(tmp_path: Path) -> None:
    """Asked to, kvguard reads the file at once, time standing still."""
    mount = Mount(tmp_path)
    mount.publish("# the defaults\n")
    async with running_stub(Stub(page=exposition(0.6))) as stub, guarding(stub, file=mount.file) as guard:
        mount.publish("tiers: {trim_at: 0.3, restrict_at: 0.4, reject_at: 0.5}\n")
        guard.service.reloader.hurry()
        await guard.until(lambda: bool(reloads(guard)))
        assert (await guard.complete()).status_code == 503


async def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    """Half a file is not taken over; the whole one is at the next look."""
    file = tmp_path / "kvguard.yaml"
    file.write_text("tiers: {trim_at: 0.3, restrict_at: 0.4, reject_at: 0.5}\n")
    async with running_stub(Stub(page=exposition(0.6))) as stub, guarding(stub, file=file) as guard:
        await poll_time(guard)
        assert (await guard.complete()).status_code == 503
        file.write_text("")
        await guard.advance(2.0)
        file.write_text("tiers: {trim_at: 0.31, restrict_at: 0.4, reject_at: 0.5}\n")
        await guard.advance(SETTLE_SECONDS)
        assert reloads(guard) == []
        await poll_time(guard)
        assert (await guard.complete()).status_code == 503
        assert len(reloads(guard)) == 1
