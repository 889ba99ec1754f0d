"""The compose file names what there is: files, services, ports, and the waits of kvguard."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvguard.sections import ListenSettings
from kvguard.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MOUNTS = [(name, mount) for name, service in SERVICES.items() for mount in service.get("volumes", ())]
GRAFANA = DEPLOY / "grafana" / "provisioning"


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


@pytest.mark.parametrize(("service", "mount"), MOUNTS, ids=str)
def test_what_is_mounted_is_there(service: str, mount: str) -> None:
    """A file of the repository, read only, or a volume that is declared."""
    source, _, rest = mount.partition(":")
    if source.startswith("."):
        assert (DEPLOY / source).exists(), service
        assert rest.endswith(":ro")
    else:
        assert source in COMPOSE["volumes"]


def test_every_volume_is_used() -> None:
    """None is declared for nobody."""
    assert COMPOSE["volumes"].keys() == {
        source for _, mount in MOUNTS if not (source := mount.split(":")[0]).startswith(".")
    }


def test_images_have_versions() -> None:
    """None moves by itself."""
    for name, service in SERVICES.items():
        tag = service["image"].partition(":")[2]
        assert "build" in service or (tag and tag != "latest"), name


def test_no_port_is_published_twice() -> None:
    """And all but traffic's is for this machine alone."""
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    hosts = [port.rsplit(":", 1)[0].removeprefix("127.0.0.1:") for port in published]
    assert len(hosts) == len(set(hosts))
    assert [port for port in published if not port.startswith("127.0.0.1:")] == ["8080:8080"]


def test_kvguard_is_not_killed_before_its_last_answers() -> None:
    """Its time to stop is longer than both waits together."""
    listen = ListenSettings()
    grace = float(SERVICES["kvguard"]["stop_grace_period"].removesuffix("s"))
    assert grace >= listen.prestop_seconds + listen.drain_seconds + 2


def test_its_environment_is_settings() -> None:
    """Every variable is one kvguard knows, and its ports are those published."""
    named = {name.removeprefix("KVGUARD_").lower().split("__")[0] for name in SERVICES["kvguard"]["environment"]}
    assert named <= Settings.model_fields.keys()
    listen = ListenSettings()
    assert [int(port.rsplit(":", 1)[1]) for port in SERVICES["kvguard"]["ports"]] == [listen.port, listen.admin_port]


def test_its_build_finds_the_dockerfile() -> None:
    """From the root of the repository."""
    build = SERVICES["kvguard"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")


def test_prometheus_asks_services_there_are() -> None:
    """Every target, and every Alertmanager, is a service of the file."""
    config = read(DEPLOY / "prometheus" / "prometheus.yml")
    groups = [*config["scrape_configs"], *config["alerting"]["alertmanagers"]]
    targets = [target for group in groups for static in group["static_configs"] for target in static["targets"]]
    assert {target.split(":")[0] for target in targets} <= SERVICES.keys()
    assert f"kvguard:{ListenSettings().admin_port}" in targets


def test_grafana_has_its_source_and_its_dashboard() -> None:
    """The source is the Prometheus of the file, the default of the board; the board is where Grafana looks for it."""
    (source,) = read(GRAFANA / "datasources" / "prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    (provider,) = read(GRAFANA / "dashboards" / "kvguard.yaml")["providers"]
    (mount,) = (mount for mount in SERVICES["grafana"]["volumes"] if "kvguard.json" in mount)
    host, inside, _ = mount.split(":")
    assert Path(inside).parent == Path(provider["options"]["path"])
    assert json.loads((DEPLOY / host).read_text())["uid"] == "kvguard"
    assert SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == inside
