"""The example of kvguard in the engine's own pod."""

from typing import Any

import pytest
import yaml

from kvguard.sections import ListenSettings
from tests.chart.conftest import Judge
from tests.chart.release import ROOT, selects
from tests.chart.test_security import violations

pytestmark = pytest.mark.chart

OBJECTS: tuple[dict[str, Any], ...] = tuple(
    yaml.safe_load_all((ROOT / "helm" / "examples" / "sidecar.yaml").read_text())
)
SETTINGS, SERVICE, DEPLOYMENT = OBJECTS
POD = DEPLOYMENT["spec"]["template"]["spec"]
ENGINE, GUARD = POD["containers"]


def test_it_is_valid(judge: Judge) -> None:
    """For every Kubernetes."""
    assert judge(OBJECTS) == []


def test_clients_reach_kvguard_and_not_the_engine() -> None:
    """The Service leads to kvguard's port; the engine listens where kvguard alone can ask it."""
    assert selects(SERVICE["spec"]["selector"], DEPLOYMENT["spec"]["template"]["metadata"]["labels"])
    assert [each["targetPort"] for each in SERVICE["spec"]["ports"]] == ["http"]
    assert {each["name"]: each["containerPort"] for each in GUARD["ports"]} == {
        "http": ListenSettings().port,
        "admin": ListenSettings().admin_port,
    }
    arguments = dict(zip(ENGINE["args"][::2], ENGINE["args"][1::2], strict=True))
    (backend,) = yaml.safe_load(SETTINGS["data"]["kvguard.yaml"])["backends"]
    assert backend["url"] == f"http://{arguments['--host']}:{arguments['--port']}"
    assert "ports" not in ENGINE


def test_o35_the_engine_outlives_the_answers() -> None:
    """It is stopped after kvguard's waits, and the pod is killed after that."""
    (_, seconds) = ENGINE["lifecycle"]["preStop"]["exec"]["command"]
    listen = ListenSettings()
    assert listen.prestop_seconds + listen.drain_seconds < int(seconds) < POD["terminationGracePeriodSeconds"]


def test_kvguard_is_restricted() -> None:
    """Whatever the engine needs."""
    assert list(violations({**POD, "containers": [GUARD]})) == []
