"""A real Prometheus answers every query of the dashboard, and has something to show for it."""

import contextlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grafana.generate import FILE
from grafana.reading import choices, filled, panels, read
from tests.monitoring.overload import overload
from tests.monitoring.process import eventually
from tests.monitoring.prometheus import Prometheus
from tests.monitoring.scene import Scene, bearer, keys, running_scene
from tests.monitoring.streaming import asking
from tests.vllm.server import free_port

DEADLINE_SECONDS = 90.0
BOARD = read(FILE)
FIRST_ROW = 13
# 256 blocks of 16 tokens, or as many tokens of TGI: some eight requests of an overload.
VLLM = "sim://?num_gpu_blocks=257&max_model_len=1024&max_num_seqs=32&enable_prefix_caching=true"
TGI = "sim+tgi://?max_batch_total_tokens=4096&max_total_tokens=1024"
# Forecasts are held against answers that nothing cut short.
CALM = {"Answers longer than forecast"}
# What a twin does not say.
UNSAID = {
    "Block rule against the engine": "the twin does not publish how many requests of full context it holds",
}


def every_feature() -> dict[str, Any]:
    """Settings with which every metric has samples: somebody in shadow mode, a queue, a model of known bytes,
    and a name that leads nowhere.
    """
    return {
        "backend": {"geometry": "llama-3.2-1b"},
        "backends": [{"url": "dns+http://nowhere.test:8000", "name": "nowhere"}],
        "discovery": {"nameservers": [f"127.0.0.1:{free_port()}"], "interval_seconds": 1},
        "identity": keys(trial=("trial", "shadowed")),
        "classes": [{"name": "shadowed", "shadow": True}],
        "tenants": [{"name": "trial"}],
        "waiting": {"max_requests": 8, "max_seconds": 10.0},
    }


@dataclass(frozen=True)
class Asked:
    """An expression of a panel as Prometheus is asked it, and the labels that the panel names."""

    panel: str
    expression: str
    labels: frozenset[str]

    @property
    def of_tgi(self) -> bool:
        return "tgi_" in self.expression


def asked() -> Iterator[Asked]:
    """Every expression."""
    values = choices(BOARD)
    for panel in panels(BOARD):
        for target in panel["targets"]:
            labels = {*re.findall(r"{{(\w+)}}", target["legendFormat"]), *_columns(panel)}
            yield Asked(panel["title"], filled(target["expr"], values), frozenset(labels))


def _columns(panel: dict[str, Any]) -> Iterator[str]:
    for each in panel.get("transformations", []):
        yield from each["options"].get("include", {}).get("names", [])


def is_answered(prometheus: Prometheus, asked: Asked) -> bool:
    """Whether there was a number with these labels within the last minute. Raises ValueError for what Prometheus does
    not take.
    """
    series = prometheus.query_range(asked.expression, seconds=60, step=2)
    named = [each for each in series if asked.labels <= each.labels.keys()]
    return any(math.isfinite(value) for each in named for _, value in each.points)


def answer_all(scene: Scene, wanted: set[Asked]) -> None:
    """Wait until each has had an answer, most of them under load that is too much."""
    url, prometheus = scene.kvguard.url, scene.prometheus
    calm = {each for each in wanted if each.panel in CALM}
    with asking(url, clients=3, headers={}):
        wait_for(prometheus, calm)
    with overload(url, max_tokens=300), asking(url, clients=1, headers=bearer("trial")):
        wait_for(prometheus, wanted - calm)


def wait_for(prometheus: Prometheus, wanted: set[Asked]) -> None:
    left = set(wanted)

    def look() -> bool:
        left.difference_update([each for each in left if is_answered(prometheus, each)])
        return not left

    with contextlib.suppress(AssertionError):
        eventually(look, seconds=DEADLINE_SECONDS, what="every query is answered")
    assert not left, "\n".join(f"{each.panel}: {each.expression}" for each in left)


def test_every_query_is_answered_in_front_of_vllm(tmp_path: Path) -> None:
    """After an overload no panel is empty, but those of an engine that is not there."""
    with running_scene(tmp_path, engine=VLLM, **every_feature()) as scene:
        answer_all(scene, {each for each in asked() if not each.of_tgi and each.panel not in UNSAID})


def test_every_query_about_tgi_is_answered_in_front_of_tgi(tmp_path: Path) -> None:
    """The panels beside TGI, and the first row, are not empty either."""
    first = {panel["title"] for panel in panels(BOARD) if panel["gridPos"]["y"] < FIRST_ROW}
    with running_scene(tmp_path, engine=TGI) as scene:
        answer_all(scene, {each for each in asked() if each.of_tgi or each.panel in first})
