"""Plays an overload from calm to recovery in front of the twin and records what an operator sees: `make drill`.

Writes docs/drill.md and its pictures: the live page in each phase, the dashboard over all of it, and the page that
Alertmanager sent. Needs Prometheus, Alertmanager and Chromium; takes three minutes.
"""
# ruff: noqa: TID251 - waits for real processes in real time

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grafana.asking import ask
from grafana.generate import FILE
from grafana.picture import Period, draw
from grafana.pictures import ENGINE, SETTINGS
from grafana.reading import read
from tests.browser.chromium import chromium
from tests.browser.test_live_page import LIVE
from tests.deploy.rules import RULES
from tests.monitoring.alertmanager import Inbox, running_alertmanager, running_inbox
from tests.monitoring.prometheus import Prometheus
from tests.monitoring.scene import Scene, bearer, running_scene
from tests.monitoring.streaming import asking

HERE = Path(__file__).parent
TIERS = ("NORMAL", "TRIM", "RESTRICT", "REJECT")
ALERT = "KvguardTierReject"
ROWS = ("At a glance", "Pressure and tiers", "Trimmed and refused")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of the drill; its picture is taken once the page's headline is at one of these levels."""

    name: str
    seconds: float
    clients: Mapping[str, int]
    levels: Sequence[str]
    told: str


PHASES = (
    Phase(name="calm", seconds=25, clients={"chat": 3}, levels=("calm",), told="Three people chat."),
    Phase(name="ramp", seconds=30, clients={"chat": 11}, levels=("busy", "overload"), told="Eleven do."),
    Phase(
        name="overload",
        seconds=50,
        clients={"chat": 14, "nightly": 36},
        levels=("overload",),
        told="A nightly job with 36 clients comes on top.",
    ),
    Phase(name="recovery", seconds=35, clients={"chat": 3}, levels=("calm",), told="The job is over, three chat."),
)


def play(scene: Scene) -> Period:
    """Go through the phases, and look at the live page towards the end of each; when each began."""
    marks = {}
    for phase in PHASES:
        marks[phase.name] = time.time()
        with contextlib.ExitStack() as stack:
            for tenant, number in phase.clients.items():
                stack.enter_context(asking(scene.kvguard.url, clients=number, headers=bearer(tenant)))
            time.sleep(phase.seconds)
            asyncio.run(shoot(scene, phase))
    return Period(start=marks["calm"], end=time.time(), marks=marks)


async def shoot(scene: Scene, phase: Phase) -> None:
    """Take the picture of the live page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with chromium(Path(folder)) as page:
            await page.look(width=1180, height=740)
            await page.open(f"http://127.0.0.1:{scene.kvguard.admin_port}/")
            await page.until(LIVE)
            await page.until(f"{list(phase.levels)}.includes(latest.headline.level)", seconds=60)
            await page.screenshot(HERE / f"drill-{phase.name}.png")


def row(prometheus: Prometheus, phase: Phase, began: float, ended: float, start: float) -> str:
    """What Prometheus says of one phase."""
    seconds = ended - began

    def increase(outcome: str) -> int:
        query = f'sum(increase(kvguard_requests_total{{outcome="{outcome}"}}[{seconds:.0f}s]))'
        return round(sum(sample.value for sample in prometheus.query(query, at=ended)))

    (tier,) = prometheus.query(f"max(max_over_time(kvguard_tier[{seconds:.0f}s]))", at=ended)
    (peak,) = prometheus.query(
        f'max(max_over_time(kvguard_kv_usage_ratio{{kind="projected"}}[{seconds:.0f}s]))', at=ended
    )
    counts = " | ".join(str(increase(outcome)) for outcome in ("admitted", "degraded", "rejected"))
    seen = f"{TIERS[int(tier.value)]} | {peak.value:.0%}"
    return f"| {phase.name} | {began - start:.0f} s | {phase.told} | {seen} | {counts} |"


def page(prometheus: Prometheus, period: Period, inbox: Inbox) -> str:
    """The whole page."""
    alert = inbox.firing(ALERT)
    if alert is None:
        raise RuntimeError(f"{ALERT} was not sent")
    marks = [*period.marks.values(), period.end]
    rows = [
        row(prometheus, phase, marks[number], marks[number + 1], period.start) for number, phase in enumerate(PHASES)
    ]
    steps = prometheus.query_range("max(kvguard_tier)", seconds=period.end - period.start, end=period.end)[0].points
    first = {
        level: next((f"{at - period.start:.0f} s" for at, value in steps if value >= level), "never")
        for level in (1, 2, 3)
    }
    pictures = "\n\n".join(
        f"**{phase.name.capitalize()}.** {phase.told}\n\n![The live page: {phase.name}](drill-{phase.name}.png)"
        for phase in PHASES
    )
    return TEXT.format(
        rows="\n".join(rows),
        first=", ".join(f"{TIERS[level]} at {at}" for level, at in first.items()),
        labels=_labels(alert),
        pictures=pictures,
        **alert["annotations"],
    )


def _labels(alert: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(alert["labels"].items()))


TEXT = """# A drill

*Played and written by `make drill`.*

![The dashboard over the whole drill](drill-dashboard.png)

kvguard stands in front of the twin of an engine with room for some seven long answers; a real Prometheus reads both
every second, by the rules in `deploy/prometheus/`, and a real Alertmanager sends what fires.

| Phase | Begins | What comes | Highest tier | Most in use | Admitted | Degraded | Refused |
|---|---|---|---|---|---|---|---|
{rows}

Tiers first entered: {first}.

## The page

```text
{summary}
{description}
{runbook_url}
{labels}
```

## The live page meanwhile

{pictures}
"""


def main() -> None:
    """Everything, from the start of the processes to the page."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        inbox = stack.enter_context(running_inbox())
        alertmanager = stack.enter_context(running_alertmanager(directory, webhook=inbox.url))
        alerting = {"rules": [RULES], "alertmanager": alertmanager}
        scene = stack.enter_context(running_scene(directory, engine=ENGINE, alerting=alerting, **SETTINGS))
        period = play(scene)
        draw(
            ask(scene.prometheus, read(FILE), rows=ROWS, start=period.start, end=period.end),
            period,
            HERE / "drill-dashboard.png",
        )
        (HERE / "drill.md").write_text(page(scene.prometheus, period, inbox))


if __name__ == "__main__":
    main()
