"""Writes grafana/kvguard.json from the rows beside it: `make dashboard`. A test compares the two."""

import json
from pathlib import Path

from grafana import engines, faults, glance, load, optional, traffic
from grafana.panel import DATASOURCE, Json, Row, laid_out
from grafana.variables import variables

FILE = Path(__file__).with_name("kvguard.json")
SCHEMA = 39
ALERTS = 'ALERTS{alertname=~"Kvguard.*", alertstate="firing"}'


def rows() -> tuple[Row, ...]:
    """From what is asked first at night to what few need."""
    return (
        glance.glance(),
        traffic.pressure(),
        traffic.decisions(),
        faults.prediction(),
        load.queue(),
        load.demand(),
        load.latency(),
        faults.telemetry(),
        optional.tenants(),
        optional.shadow(),
        optional.discovery(),
        engines.vllm(),
        engines.tgi(),
    )


def dashboard() -> Json:
    """The whole dashboard as Grafana reads it."""
    return {
        "uid": "kvguard",
        "title": "kvguard",
        "description": "Admission control by the KV cache: pressure, decisions and their reasons, and the engines.",
        "tags": ["kvguard", "llm"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "timezone": "browser",
        "templating": {"list": variables()},
        "annotations": {"list": [_alerts()]},
        "links": [_other_boards()],
        "panels": laid_out(rows()),
    }


def _alerts() -> Json:
    return {
        "name": "Alerts of kvguard",
        "datasource": DATASOURCE,
        "enable": True,
        "expr": ALERTS,
        "iconColor": "red",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{backend}} {{severity}}",
    }


def _other_boards() -> Json:
    return {
        "type": "dashboards",
        "title": "LLM serving",
        "tags": ["llm"],
        "asDropdown": True,
        "includeVars": False,
        "keepTime": True,
        "icon": "external link",
        "targetBlank": False,
        "tooltip": "",
        "url": "",
    }


def written() -> str:
    """The file as it should be."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Bring the file up to date."""
    FILE.write_text(written())


if __name__ == "__main__":
    main()
