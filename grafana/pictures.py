"""Records an overload and draws the dashboard's rows for the docs: `make dashboard-pictures`.

Needs Prometheus, as tests/monitoring/ does, and the extra `plot`; takes three minutes.
"""
# ruff: noqa: TID251 - waits for real processes in real time

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

from grafana.asking import ask
from grafana.generate import FILE
from grafana.picture import Period, draw
from grafana.reading import read
from tests.monitoring.prometheus import Prometheus
from tests.monitoring.scene import Scene, bearer, keys, running_scene
from tests.monitoring.streaming import asking

DOCS = Path(__file__).parents[1] / "docs"
# 256 blocks of 16 tokens: some seven of the answers below at full length.
ENGINE = "sim://?num_gpu_blocks=257&max_model_len=1024&max_num_seqs=64"
SETTINGS: dict[str, Any] = {
    "identity": keys(chat=("chat", "normal"), nightly=("nightly", "sheddable")),
    "tenants": [{"name": "chat"}, {"name": "nightly"}],
    "waiting": {"max_requests": 8, "max_seconds": 2.0},
    "tiers": {"min_dwell_seconds": 1.0},
}
# Name, seconds, and clients of each tenant.
PHASES = (
    ("calm", 25, {"chat": 3}),
    ("busy", 30, {"chat": 12}),
    ("overload", 50, {"chat": 14, "nightly": 36}),
    ("over", 30, {"chat": 3}),
)
FIRST = ("At a glance", "Pressure and tiers", "Trimmed and refused")
REST = ("Prediction against reality", "Queue and drain", "Tokens and demand", "Latency")
BESIDE = ("vLLM beside kvguard",)


def record(scene: Scene) -> Period:
    """Go through the phases; when each began."""
    marks = {}
    for name, seconds, clients in PHASES:
        marks[name] = time.time()
        with contextlib.ExitStack() as stack:
            for tenant, number in clients.items():
                stack.enter_context(asking(scene.kvguard.url, clients=number, headers=bearer(tenant)))
            time.sleep(seconds)
    return Period(start=marks["calm"], end=time.time(), marks=marks)


def worst_moment(prometheus: Prometheus, period: Period) -> float:
    """When the highest tier was in force for the last time."""
    (tier,) = prometheus.query_range("max(kvguard_tier)", seconds=period.end - period.start, end=period.end)
    highest = max(value for _, value in tier.points)
    return max(at for at, value in tier.points if value == highest)


def draw_all(scene: Scene, period: Period) -> None:
    """The first rows as they were at the worst moment, the others over all of it."""
    board, worst = read(FILE), worst_moment(scene.prometheus, period)
    until = Period(start=period.start, end=worst, marks={name: at for name, at in period.marks.items() if at < worst})
    for rows, seen, name in (
        (FIRST, until, "dashboard.png"),
        (REST, period, "dashboard-rows.png"),
        (BESIDE, period, "dashboard-vllm.png"),
    ):
        shown = ask(scene.prometheus, board, rows=rows, start=seen.start, end=seen.end)
        draw(shown, seen, DOCS / name)


def main() -> None:
    """Everything, from the start of the processes to the pictures."""
    with tempfile.TemporaryDirectory() as directory, running_scene(Path(directory), engine=ENGINE, **SETTINGS) as scene:
        draw_all(scene, record(scene))


if __name__ == "__main__":
    main()
