"""The state file: what outlives a restart, and that no file keeps kvguard from starting or serving."""

import json
import logging
import os
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvguard import state
from kvguard.admission.footprint import Demand
from kvguard.admission.lengths import LengthPolicy, OutputLengths
from kvguard.admission.occupancy import OccupancyPolicy
from kvguard.admission.population import Population
from kvguard.bootstrap import running
from kvguard.clock import ManualClock
from kvguard.errors import SettingsError
from kvguard.pool.backend import Backend, new_backend
from kvguard.state import StateFile, check_writable
from kvguard.trial import find_faults
from tests.kit.guard import guarding, settings_for
from tests.kit.stub import Call, Stub, completion, exposition, running_stub

pytestmark = pytest.mark.anyio

CHAT = Population(model="m", route="chat")
ASKED = Demand(prompts=(16,), output_cap=1024, asked_cap=1024, expected_output=1024, population=CHAT)
GOOD = {
    "model": "m",
    "route": "chat",
    "caller": "",
    "stops": False,
    "cap_class": 11,
    "answers": 5,
    "weights": [[20, 5.0]],
}


def backends(*lengths: int) -> tuple[Backend, Backend]:
    """Two of which the first has given answers of these lengths."""
    first, second = (
        new_backend(name, f"http://{name}", OccupancyPolicy(), LengthPolicy(min_answers=3)) for name in "ab"
    )
    for length in lengths:
        first.learn(ASKED, length)
    return first, second


def learned(*of: Backend) -> dict[str, OutputLengths]:
    return {backend.name: backend.occupancy.lengths for backend in of}


def forecasts(*of: Backend) -> list[int | None]:
    return [backend.occupancy.lengths.expected(CHAT, cap=1024, produced=0) for backend in of]


class Reports(SimpleNamespace):
    """Remembers what was reported of the file."""

    def __init__(self) -> None:
        super().__init__(said=[])

    def state(self, what: str, path: str, why: str) -> None:
        self.said.append((what, path, why))


async def test_what_one_run_has_learned_the_next_one_knows(tmp_path: Path) -> None:
    """Each backend gets its own back, and nothing but lengths, names and counts is in the file."""
    path, reports = tmp_path / "lengths.json", Reports()
    first, second = backends(20, 20, 20)
    await StateFile(path, learned(first, second), reports).save()
    after = backends()
    StateFile(path, learned(*after), reports).load()
    assert forecasts(*after) == forecasts(first, second) == [20, None]
    assert reports.said == []
    written = json.loads(path.read_text())
    assert set(written) == {"version", "backends"}
    assert {key for each in written["backends"]["a"] for key in each} == set(GOOD)
    assert os.listdir(tmp_path) == ["lengths.json"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b'{"x":' + b"[" * 100_000, "recursion"),
        (b"{}", "missing required field"),
        (b'{"version": 2, "backends": {}}', "version 2"),
        (b'{"version": "1", "backends": {}}', "int"),
        (json.dumps({"version": 1, "backends": {"a": [{**GOOD, "answers": -1}]}}).encode(), "range"),
        (json.dumps({"version": 1, "backends": {"a": [{**GOOD, "model": "m" * 999}]}}).encode(), "longer"),
        (json.dumps({"version": 1, "backends": {"a": [{**GOOD, "weights": [[20, 1e400]]}]}}).encode(), "malformed"),
        (json.dumps({"version": 1, "backends": {"a": [GOOD]}}).encode() + b" " * 1000, "larger"),
    ],
)
async def test_a_file_that_cannot_be_used_is_said_once_and_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, why: str
) -> None:
    """Missing, cut off, foreign, absurd or too large: kvguard starts as if there were none."""
    monkeypatch.setattr(state, "MAX_STATE_BYTES", 1000 if why == "larger" else state.MAX_STATE_BYTES)
    path, reports, after = tmp_path / "lengths.json", Reports(), backends()
    if content is not None:
        path.write_bytes(content)
    StateFile(path, learned(*after), reports).load()
    ((what, where, said),) = reports.said
    assert (what, where) == ("ignored", str(path))
    assert why in said
    assert forecasts(*after) == [None, None]


async def test_a_file_of_the_largest_size_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is the last size that is taken."""
    content = json.dumps({"version": 1, "backends": {"a": [GOOD], "gone": [GOOD]}}).encode()
    monkeypatch.setattr(state, "MAX_STATE_BYTES", len(content))
    path, reports, after = tmp_path / "lengths.json", Reports(), backends()
    path.write_bytes(content)
    StateFile(path, learned(*after), reports).load()
    assert (reports.said, forecasts(*after)) == ([], [20, None])


async def test_only_news_are_written(tmp_path: Path) -> None:
    """A save with nothing new leaves the file alone, one with news replaces it."""
    path, (first, second) = tmp_path / "lengths.json", backends(20, 20, 20)
    file = StateFile(path, learned(first, second), Reports())
    await file.save()
    path.unlink()
    await file.save()
    assert not path.exists()
    second.learn(ASKED, 5)
    await file.save()
    assert path.exists()


async def test_a_failed_save_is_reported_and_tried_again(tmp_path: Path) -> None:
    """The old file stays as it was, and nothing is left behind."""
    folder, reports = tmp_path / "state", Reports()
    path = folder / "lengths.json"
    path.mkdir(parents=True)
    file = StateFile(path, learned(*backends(20, 20, 20)), reports)
    await file.save()
    ((what, where, _),) = reports.said
    assert (what, where) == ("not_written", str(path))
    assert os.listdir(folder) == ["lengths.json"]
    path.rmdir()
    await file.save()
    assert len(reports.said) == 1
    assert path.is_file()


async def test_lengths_are_saved_every_interval_and_at_the_end(tmp_path: Path) -> None:
    """And known from the first request on after a restart, as the log and the file show."""
    path = tmp_path / "lengths.json"
    sections = {"forecast": {"min_answers": 1, "state_file": path, "state_interval_seconds": 30}}

    async def answer(call: Call) -> None:
        await call.reply(200, completion(1, 40))

    async with running_stub(Stub(page=exposition(0.1), answer=answer)) as stub:
        async with guarding(stub, **sections) as guard:
            assert [line["state"] for line in guard.logs if line["event"] == "state_file"] == ["ignored"]
            await guard.complete([1], max_tokens=50)
            assert not path.exists()
            await guard.advance(30)
            await guard.until(path.exists)
            path.unlink()
            await guard.complete([1], max_tokens=50)
        assert path.exists()
        async with guarding(stub, **sections) as guard:
            assert not [line for line in guard.logs if line["event"] == "state_file"]
            await guard.complete([1], max_tokens=50)
            assert guard.metric("kvguard_forecast_answers_total", backend="b0", source="learned") == 1


@pytest.mark.parametrize("where", ["missing/lengths.json", "file/lengths.json", "folder"])
async def test_a_path_that_cannot_be_written_is_a_fault(tmp_path: Path, where: str) -> None:
    """Said at the start and by check-config, naming the setting."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    settings = settings_for(SimpleNamespace(url="http://127.0.0.1:9"), forecast={"state_file": tmp_path / where})
    with pytest.raises(SettingsError, match=r"forecast\.state_file: .* cannot be written: ."):
        find_faults(settings)
    started = running(settings, clock=ManualClock(), rng=random.Random(0), logger=logging.getLogger("kvguard"))
    with pytest.raises(SettingsError, match=r"forecast\.state_file"):
        await started.__aenter__()


def test_trying_a_path_leaves_nothing_there(tmp_path: Path) -> None:
    """Whether there is a file already or not."""
    check_writable(tmp_path / "lengths.json")
    assert os.listdir(tmp_path) == []
    (tmp_path / "lengths.json").write_text("old")
    check_writable(tmp_path / "lengths.json")
    assert (tmp_path / "lengths.json").read_text() == "old"
