"""Every pod of the chart passes the restricted Pod Security Standard."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chart.release import ROOT, rendered
from tests.chart.value_sets import SETS

pytestmark = pytest.mark.chart

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def violations(pod: dict[str, Any]) -> Iterator[str]:
    """What the restricted profile forbids, field by field."""
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    yield from (f"volume {each['name']}" for each in pod.get("volumes", ()) if not (each.keys() - {"name"}) <= VOLUMES)
    outer = pod.get("securityContext", {})
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        yield from _of_container({**outer, **container.get("securityContext", {})})
        yield from (f"host port {port}" for port in container.get("ports", ()) if port.get("hostPort"))


def _of_container(context: dict[str, Any]) -> Iterator[str]:
    """The same for a container, in whose context is what the pod's says."""
    capabilities = context.get("capabilities", {})
    added = set(capabilities.get("add", ()))
    wanted = {
        "privileged": not context.get("privileged"),
        "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
        "runAsNonRoot": context.get("runAsNonRoot") is True and context.get("runAsUser") != 0,
        "seccompProfile": context.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
        "capabilities": capabilities.get("drop") == ["ALL"] and added <= {"NET_BIND_SERVICE"},
    }
    yield from (name for name, right in wanted.items() if not right)


def pods(values: dict[str, Any]) -> list[dict[str, Any]]:
    release = rendered(values)
    return [release.pod, *(each["spec"] for each in release.all("Pod"))]


@pytest.mark.parametrize("values", SETS.values(), ids=SETS.keys())
def test_it_is_restricted(values: dict[str, Any]) -> None:
    """The Deployment's and that of `helm test`."""
    assert [fault for pod in pods(values) for fault in violations(pod)] == []


@pytest.mark.parametrize("values", SETS.values(), ids=SETS.keys())
def test_it_may_do_no_more_than_it_has_to(values: dict[str, Any]) -> None:
    """A numeric user, a root that cannot be written, no token, requests, and no limit of CPU."""
    for pod in pods(values):
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert container["resources"]["limits"].keys() == {"memory"}


def test_what_it_writes_is_on_a_volume() -> None:
    """Its state and temporary files; the settings are read only."""
    release = rendered()
    mounts = {each["mountPath"]: each for each in release.container["volumeMounts"]}
    volumes = {each["name"]: each for each in release.pod["volumes"]}
    assert mounts["/etc/kvguard"]["readOnly"] is True
    for path in ("/tmp", "/var/lib/kvguard"):
        assert "emptyDir" in volumes[mounts[path]["name"]]
    assert release.settings["forecast"]["state_file"].startswith("/var/lib/kvguard/")


def test_the_check_finds_what_is_forbidden() -> None:
    """Each field that is put wrong is one violation."""
    pod = rendered().pod
    wrong = {
        **pod,
        "hostNetwork": True,
        "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
        "securityContext": {},
    }
    assert list(violations(wrong)) == ["hostNetwork", "volume root", "runAsNonRoot", "seccompProfile"]


def test_the_image_runs_as_the_same_user() -> None:
    """As a number, so that Kubernetes sees that it is not root."""
    (user,) = (line for line in (ROOT / "deploy" / "Dockerfile").read_text().splitlines() if line.startswith("USER "))
    context = rendered().pod["securityContext"]
    assert user == f"USER {context['runAsUser']}:{context['runAsGroup']}"
