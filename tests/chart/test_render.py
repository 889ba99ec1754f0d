"""Whatever values it is installed with, what Helm makes of them is what Kubernetes takes."""

import re
from typing import Any

import pytest

from tests.chart.conftest import Judge
from tests.chart.release import CHART, HELMS, ROOT, helm, rendered
from tests.chart.value_sets import SETS

pytestmark = pytest.mark.chart

LONG = "a-release-with-a-name-as-long-as-helm-allows-it-to-be"
assert len(LONG) == 53


@pytest.mark.parametrize("program", HELMS)
@pytest.mark.parametrize("values", SETS.values(), ids=SETS.keys())
def test_every_manifest_is_valid(judge: Judge, values: dict[str, Any], program: str) -> None:
    """For the oldest, a middle and the newest Kubernetes, and for the operators whose kinds are used."""
    assert judge(rendered(values, program=program).objects) == []


def test_every_kind_of_object_is_among_them() -> None:
    """The sets above leave no template out."""
    kinds = {each["kind"] for values in SETS.values() for each in rendered(values).objects}
    named = {
        kind
        for path in (CHART / "templates").rglob("*.yaml")
        for kind in re.findall(r"^kind: (\w+)", path.read_text(), re.MULTILINE)
    }
    assert named <= kinds


@pytest.mark.parametrize("program", HELMS)
@pytest.mark.parametrize(
    "values", [SETS["defaults"], SETS["service monitor"], SETS["autoscaling"]], ids=["a", "b", "c"]
)
def test_it_has_nothing_to_complain_of(values: dict[str, Any], program: str) -> None:
    """`helm lint --strict` is content."""
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), program=program, values=values)


@pytest.mark.parametrize(
    "values", [{}, *(SETS[name] for name in ("service monitor", "keda", "autoscaling", "another name"))]
)
def test_names_fit(values: dict[str, Any]) -> None:
    """With the longest name of a release no name and no label is longer than 63 characters."""
    for each in rendered(values, name=LONG).objects:
        named = [each["metadata"]["name"], *each["metadata"]["labels"].values()]
        assert [text for text in named if len(text) > 63 or text.endswith("-")] == []


@pytest.mark.parametrize("name", ["y", "no", "1e5", "0x10", "null", "12"])
def test_names_stay_names(judge: Judge, name: str) -> None:
    """Those that YAML would read as something else as well, for a release and for its namespace."""
    release = rendered(SETS["service monitor"] | SETS["autoscaling"], name=name, namespace=name)
    assert judge(release.objects) == []
    assert release.one("Deployment")["metadata"]["namespace"] == name


def test_two_releases_share_no_name() -> None:
    """Nor does one select the other's pods."""
    one, other = rendered(name="one"), rendered(name="other")
    assert not {(o["kind"], o["metadata"]["name"]) for o in one.objects} & {
        (o["kind"], o["metadata"]["name"]) for o in other.objects
    }
    assert not one.service("proxy")["spec"]["selector"].items() <= other.template["metadata"]["labels"].items()


def test_the_judge_finds_faults(judge: Judge) -> None:
    """A misspelt field of Kubernetes' own kinds, one of an operator's, and a kind nobody knows."""
    service, monitor = (rendered(SETS["service monitor"]).one(kind) for kind in ("ServiceAccount", "ServiceMonitor"))
    service["automountToken"] = False
    monitor["spec"]["endpoints"][0]["ports"] = "admin"
    faults = judge((service, monitor, {"apiVersion": "v1", "kind": "Servise", "metadata": {"name": "x"}}))
    assert len(faults) == 7


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"replicas": 2}, "replicas"),
        ({"config": {"tiers": {"trim_att": 0.7}}}, "trim_att"),
        ({"config": {"tiers": {"trim_at": "70%"}}}, "trim_at"),
        ({"config": {"backends": [{}]}}, "url"),
        ({"service": {"port": 0}}, "port"),
        ({"monitor": {"kind": "ServiceMoniter"}}, "kind"),
        ({"livenessProbe": {"httpGet": {"path": "/"}}}, "httpGet"),
        ({"image": {"digest": "latest"}}, "digest"),
    ],
)
@pytest.mark.parametrize("program", HELMS)
def test_a_value_that_cannot_be_is_refused(values: dict[str, Any], place: str, program: str) -> None:
    """By its name, before anything is installed."""
    with pytest.raises(Exception, match=place):
        rendered(values, program=program)


def test_the_first_commands_are_those_of_the_docs() -> None:
    """What an operator reads after an install is what docs/helm.md shows; Helm 3 tells it to a cluster alone."""
    url = "config.backends[0].url=http://vllm:8000"
    told = helm("install", "kvguard", str(CHART), "--namespace", "llm", "--set", url, "--dry-run=client")
    notes = told.partition("NOTES:\n")[2].strip()
    assert notes
    assert notes in (ROOT / "docs" / "helm.md").read_text()
