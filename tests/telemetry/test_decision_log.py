"""The decision log's file: who is in it, what is in it, how large it gets, and that nobody waits for it."""

import logging
import queue
import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvguard.admission.condition import Passage
from kvguard.admission.recorded import DecisionRecord, Verdict, standing_of
from kvguard.admission.tiers import Tier
from kvguard.bootstrap import running
from kvguard.clock import ManualClock
from kvguard.errors import SettingsError
from kvguard.telemetry import decision_log
from kvguard.telemetry.decision_log import (
    MAX_QUEUED,
    DecisionFile,
    DecisionLine,
    DecisionLogPolicy,
    check_appendable,
    in_sample,
    rotated,
)
from kvguard.telemetry.events import DecisionEvent, Outcome
from kvguard.trial import find_faults
from tests.admission.build import occupancy
from tests.kit.guard import settings_for
from tests.kit.stub import Stub

RECORD = DecisionRecord(
    standing=standing_of("b", occupancy(0.5), 0.0, Passage.OPEN), verdict=Verdict(tier=Tier.NORMAL), in_force=()
)


def event(number: int = 0, **fields: Any) -> DecisionEvent:
    common = {"request_id": f"id{number}", "route": "/v1/x", "outcome": Outcome.ADMITTED, "tier": Tier.NORMAL}
    return DecisionEvent(**{**common, "record": RECORD, **fields})


class Log:
    """A file under test, its clock at 5, knowing one tenant; `lost` counts."""

    def __init__(self, path: Path, **policy: Any) -> None:
        self.path, self.lost, self.losing = path, 0, threading.Event()
        self.file = DecisionFile(
            DecisionLogPolicy(path=path, **policy),
            wall=lambda: 5.0,
            tenants=lambda: frozenset({"known"}),
            dropped=self._count,
        )

    def _count(self) -> None:
        self.lost += 1
        self.losing.set()

    def lines(self, path: Path | None = None) -> list[DecisionLine]:
        text = (path or self.path).read_bytes()
        return [msgspec.json.decode(line, type=DecisionLine) for line in text.splitlines()]


def test_a_decision_is_a_line_that_reads_back(tmp_path: Path) -> None:
    """All of it, under its request's id, with a tenant only if the settings name it; others have no line."""
    log = Log(tmp_path / "log")
    with log.file.written():
        log.file.decision(event(1, tenant="known", retry_after_seconds=2.5))
        log.file.decision(event(2, tenant="somebody's secret"))
        log.file.decision(event(3, record=None))
    first, second = log.lines()
    assert first == DecisionLine(
        time=5.0, request_id="id1", route="/v1/x", tenant="known", retry_after_seconds=2.5, decision=RECORD
    )
    assert (second.tenant, log.lost) == (None, 0)
    assert b"secret" not in log.path.read_bytes()


def test_a_second_run_appends(tmp_path: Path) -> None:
    """A restart loses nothing."""
    for number in (1, 2):
        log = Log(tmp_path / "log")
        with log.file.written():
            log.file.decision(event(number))
    assert [line.request_id for line in log.lines()] == ["id1", "id2"]


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.25, 200, 300), (1.0, 1000, 1000)])
def test_the_id_alone_decides_who_is_in_the_sample(share: float, least: int, most: int) -> None:
    """About its share is, and whoever is in a small sample is in a larger one."""
    ids = [f"request-{number}" for number in range(1000)]
    kept = {each for each in ids if in_sample(each, share)}
    assert least <= len(kept) <= most
    assert kept <= {each for each in ids if in_sample(each, min(1.0, share * 2))}


def test_only_the_sample_is_written(tmp_path: Path) -> None:
    """The file and the function agree."""
    log = Log(tmp_path / "log", sample=0.5)
    with log.file.written():
        for number in range(50):
            log.file.decision(event(number))
    assert [line.request_id for line in log.lines()] == [f"id{n}" for n in range(50) if in_sample(f"id{n}", 0.5)]


def test_the_file_is_rotated_once(tmp_path: Path) -> None:
    """It never exceeds its size, whole lines move to `.1`, and what was there before goes."""
    size = len(msgspec.json.encode(DecisionLine(time=5.0, request_id="id0", route="/v1/x", decision=RECORD))) + 1
    log = Log(tmp_path / "log", max_bytes=3 * size)
    with log.file.written():
        for number in range(8):
            log.file.decision(event(number))
    assert [line.request_id for line in log.lines()] == ["id6", "id7"]
    assert [line.request_id for line in log.lines(rotated(log.path))] == ["id3", "id4", "id5"]
    assert log.path.stat().st_size <= 3 * size


def test_a_line_larger_than_the_file_is_written_alone(tmp_path: Path) -> None:
    """A bound below one line keeps the last two lines."""
    log = Log(tmp_path / "log", max_bytes=1)
    with log.file.written():
        for number in range(3):
            log.file.decision(event(number))
    assert [line.request_id for line in log.lines(rotated(log.path)) + log.lines()] == ["id1", "id2"]


def test_a_writer_that_cannot_keep_up_loses_lines_and_nobody_waits(tmp_path: Path) -> None:
    """While nothing is written the queue fills to its bound; what comes then is counted as lost."""
    log = Log(tmp_path / "log")
    for number in range(MAX_QUEUED + 3):
        log.file.decision(event(number))
    assert log.lost == 3
    with log.file.written():
        pass
    assert len(log.lines()) == MAX_QUEUED


def test_a_writer_that_hangs_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a full queue the end gives up after its time."""
    monkeypatch.setattr(decision_log, "_STOP_SECONDS", 0.01)
    monkeypatch.setattr(DecisionFile, "_write_all", lambda self: None)
    log = Log(tmp_path / "log")
    with log.file.written():
        for number in range(MAX_QUEUED):
            log.file.decision(event(number))
    with pytest.raises(queue.Full):
        log.file._lines.put_nowait(None)


def test_a_disk_that_fails_loses_lines_and_is_tried_again(tmp_path: Path) -> None:
    """The next line opens the file anew."""
    folder = tmp_path / "folder"
    folder.mkdir()
    log = Log(folder / "log")
    with log.file.written():
        folder.rmdir()
        log.file.decision(event(1))
        assert log.losing.wait(30)
        folder.mkdir()
        log.file.decision(event(2))
    assert ([line.request_id for line in log.lines()], log.lost) == (["id2"], 1)


@pytest.mark.parametrize("name", ["no/such/log", "folder"])
def test_a_path_that_cannot_be_written_is_a_fault(name: str, tmp_path: Path) -> None:
    """A directory that is not there, and one in the file's place."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingsError, match=r"decision_log\.path"):
        check_appendable(tmp_path / name)
    with pytest.raises(SettingsError), Log(tmp_path / name).file.written():
        pass


def test_trying_a_path_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a new file nor another one."""
    check_appendable(tmp_path / "new")
    (tmp_path / "old").write_text("x\n")
    check_appendable(tmp_path / "old")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("old", "x\n")]


@pytest.mark.anyio
async def test_a_path_that_cannot_be_written_is_a_fault_at_the_start(tmp_path: Path) -> None:
    """`check-config` and `serve` both say so."""
    settings = settings_for(Stub(port=9), decision_log={"path": tmp_path / "no" / "log"})
    with pytest.raises(SettingsError, match=r"decision_log\.path: .* cannot be written: ."):
        find_faults(settings)
    started = running(settings, clock=ManualClock(), rng=random.Random(0), logger=logging.getLogger("kvguard"))
    with pytest.raises(SettingsError, match=r"decision_log\.path"):
        await started.__aenter__()
