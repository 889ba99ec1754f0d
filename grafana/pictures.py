"""Records an overload and draws the dashboard's rows for the docs: `make dashboard-pictures`.

Needs Prometheus, as tests/monitoring/ does, and the extra `plot`; takes three minutes.
"""
# ruff: noqa: TID251 - waits for real processes in real time

import contextlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grafana.asking import ask
from grafana.generate import FILE
from grafana.picture import Period, draw
from grafana.reading import read
from tests.monitoring.scene import Scene, bearer, keys, running_scene
from tests.monitoring.streaming import asking

DOCS = Path(__file__).parents[1] / "docs"
# 256 blocks of 16 tokens: some seven of the answers below at full length.
ENGINE = "sim://?num_gpu_blocks=257&max_model_len=1024&max_num_seqs=64"
SETTINGS: dict[str, Any] = {
    "identity": keys(chat=("chat", "normal"), nightly=("nightly", "sheddable")),
    "tenants": [{"name": "chat"}, {"name": "nightly"}],
    "waiting": {"max_requests": 8, "max_seconds": 2.0},
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


def record(scene: Scene, began: float, marks: dict[str, float]) -> None:
    """Go through the phases; draw the first rows when it is worst, all of them when it is over."""
    for name, seconds, clients in PHASES:
        marks[name] = time.time()
        with contextlib.ExitStack() as stack:
            for tenant, number in clients.items():
                stack.enter_context(asking(scene.kvguard.url, clients=number, headers=bearer(tenant)))
            time.sleep(seconds)
            if name == "overload":
                _draw(scene, FIRST, began, marks, DOCS / "dashboard.png")
    _draw(scene, REST, began, marks, DOCS / "dashboard-rows.png")
    _draw(scene, BESIDE, began, marks, DOCS / "dashboard-vllm.png")


def _draw(scene: Scene, rows: Sequence[str], began: float, marks: dict[str, float], file: Path) -> None:
    end = time.time()
    shown = ask(scene.prometheus, read(FILE), rows=rows, seconds=end - began)
    draw(shown, Period(start=began, end=end, marks=marks), file)


def main() -> None:
    """Everything, from the start of the processes to the pictures."""
    with tempfile.TemporaryDirectory() as directory, running_scene(Path(directory), engine=ENGINE, **SETTINGS) as scene:
        record(scene, time.time(), {})


if __name__ == "__main__":
    main()
