"""What the chart makes of the settings: the file, the share, the grace period, and when pods are replaced."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvguard.sections import ListenSettings
from kvguard.settings import Settings
from kvguard.sources import load_settings
from tests.chart.release import HELMS, RenderFailed, rendered
from tests.chart.value_sets import SETS

pytestmark = pytest.mark.chart

CHECKSUM = "checksum/restart-only-settings"


def in_force(values: dict[str, Any], directory: Path) -> Settings:
    """What kvguard reads out of the rendered file."""
    file = directory / "kvguard.yaml"
    file.write_text(rendered(values).config_map["data"]["kvguard.yaml"])
    return load_settings(config=file)


@pytest.mark.parametrize("values", SETS.values(), ids=SETS.keys())
def test_kvguard_takes_the_settings(values: dict[str, Any], tmp_path: Path) -> None:
    """Every file the chart renders is one without a fault, and says what the values say."""
    settings = in_force(values, tmp_path)
    given = values.get("config", {})
    for section, content in given.items():
        if isinstance(content, dict):
            read = getattr(settings, section).model_dump(mode="json")
            assert content.items() <= read.items()


@pytest.mark.parametrize("values", SETS.values(), ids=SETS.keys())
def test_o35_the_grace_period_covers_both_waits(values: dict[str, Any], tmp_path: Path) -> None:
    """A pod is not killed while answers run that kvguard lets end."""
    listen = in_force(values, tmp_path).listen
    assert rendered(values).pod["terminationGracePeriodSeconds"] > listen.prestop_seconds + listen.drain_seconds


@pytest.mark.parametrize("program", HELMS)
@pytest.mark.parametrize(
    ("grace", "listen"),
    [
        (35, {}),
        (30, {}),
        (600, {"drain_seconds": 600}),
        (10, {"prestop_seconds": 0, "drain_seconds": 10}),
        (36, {"prestop_seconds": 5.5, "drain_seconds": 30.1}),
    ],
)
def test_o35_a_grace_period_that_is_too_short_is_refused(grace: int, listen: dict[str, float], program: str) -> None:
    """With both names, so that either can be changed."""
    values = {"terminationGracePeriodSeconds": grace, "config": {"listen": listen}}
    with pytest.raises(RenderFailed, match=r"terminationGracePeriodSeconds \(\d+\) must be longer than config.listen"):
        rendered(values, program=program)


def test_o35_the_waits_are_those_of_kvguard() -> None:
    """What the chart takes for granted where nothing is set is what kvguard does."""
    listen = ListenSettings()
    assert rendered().pod["terminationGracePeriodSeconds"] == listen.prestop_seconds + listen.drain_seconds + 10
    release = rendered({"config": {"listen": {}}})
    ports = [each["containerPort"] for each in release.container["ports"]]
    assert ports == [listen.port, listen.admin_port]


def test_o36_settings_are_mounted_as_a_directory() -> None:
    """No mount of the chart has a `subPath`, which Kubernetes never updates."""
    for values in SETS.values():
        assert [each for each in rendered(values).container["volumeMounts"] if "subPath" in each] == []


@pytest.mark.parametrize(
    ("config", "replaced"),
    [
        ({"mode": "shadow"}, False),
        ({"tiers": {"reject_at": 0.9}}, False),
        ({"share": 0.5}, False),
        ({"forecast": {"quantile": 0.9}}, False),
        ({"backends": [{"url": "sim://", "mode": "shadow"}]}, False),
        ({"backends": [{"url": "http://vllm:8000"}]}, True),
        ({"telemetry": {"interval_seconds": 1}}, True),
        ({"forecast": {"state_file": "/var/lib/kvguard/other.json"}}, True),
        ({"upstream": {"connect_timeout_seconds": 1}}, True),
        ({"log": {"level": "debug"}}, True),
    ],
)
def test_o36_pods_are_replaced_only_where_they_must_be(config: dict[str, Any], replaced: bool) -> None:
    """What kvguard takes over while it runs changes its file and nothing else."""
    before, after = (rendered(values) for values in ({}, {"config": config}))
    assert before.config_map["data"] != after.config_map["data"]
    assert (before.template != after.template) is replaced
    sums = [each.template["metadata"]["annotations"][CHECKSUM] for each in (before, after)]
    assert (sums[0] != sums[1]) is replaced


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({}, 1.0),
        ({"replicaCount": 0}, 1.0),
        ({"replicaCount": 2}, 1 / 2),
        ({"replicaCount": 3}, 1 / 3),
        ({"autoscaling": {"enabled": True, "maxReplicas": 8}}, 1 / 8),
        ({"replicaCount": 4, "config": {"share": 0.3}}, 0.3),
    ],
)
@pytest.mark.parametrize("program", HELMS)
def test_o41_replicas_share_the_headroom(values: dict[str, Any], share: float, program: str) -> None:
    """Each claims 1/N, and N is the most there may be; what is set by hand stays."""
    assert rendered(values, program=program).settings["share"] == pytest.approx(share)


def test_o41_more_replicas_restart_nobody() -> None:
    """Running pods take the smaller share over."""
    assert rendered({"replicaCount": 2}).template == rendered({"replicaCount": 5}).template


def test_o22_the_status_of_a_refusal_is_a_value(tmp_path: Path) -> None:
    """Where a mesh repeats every 503."""
    settings = in_force(SETS["refusals a mesh does not repeat"], tmp_path)
    assert {reason.value: status for reason, status in settings.reject.status.items()} == {"saturated": 429}


def test_o33_probes_ask_three_questions() -> None:
    """Alive, and able to decide; start-up waits for the process, not for a model that loads for minutes."""
    probes = {name: rendered().container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    assert {name: each["httpGet"]["path"] for name, each in probes.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {each["httpGet"]["port"] for each in probes.values()} == {"admin"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"config": {"listen": {"port": 80}}}, "1024 or above"),
        ({"config": {"listen": {"port": 9090}}}, "must differ"),
        ({"config": {"listen": {"host": "127.0.0.1"}}}, "config.listen.host"),
        ({"extraEnv": [{"name": "KVGUARD_LISTEN__DRAIN_SECONDS", "value": "600"}]}, "under config"),
        ({"extraEnv": [{"name": "kvguard_share", "value": "1"}]}, "under config"),
        ({"autoscaling": {"enabled": True, "minReplicas": 9}}, "autoscaling.minReplicas"),
        ({"keda": {"enabled": True}}, "must name what runs the model servers"),
        ({"keda": {"enabled": True, "scaleTargetRef": {"name": "kvguard"}}}, "kvguard itself is scaled by autoscaling"),
        ({"keda": {"enabled": True, "scaleTargetRef": {"name": "vllm"}, "minReplicaCount": 9}}, "keda.minReplicaCount"),
        ({"podDisruptionBudget": {"minAvailable": 1, "maxUnavailable": 1}}, "not both"),
        ({"replicaCount": 2, "state": {"existingClaim": "lengths"}}, "for one replica"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs"),
        ({"ingress": {"enabled": True}}, "ingress.hosts"),
    ],
)
def test_values_that_do_not_go_together_are_refused(values: dict[str, Any], told: str) -> None:
    """The render fails with a sentence that says what to change."""
    with pytest.raises(RenderFailed, match=told):
        rendered(values)


def test_large_numbers_stay_numbers() -> None:
    """Helm writes none of them as a power of ten."""
    text = rendered(SETS["large numbers"]).config_map["data"]["kvguard.yaml"]
    assert yaml.safe_load(text)["limits"]["max_body_bytes"] == 268435456
    assert "e+" not in text


def test_the_values_of_a_set_are_left_alone() -> None:
    """What is rendered first does not depend on what was rendered before."""
    values = copy.deepcopy(SETS["shadow"])
    assert rendered(values) == rendered(SETS["shadow"])
