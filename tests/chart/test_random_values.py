"""Values nobody thought of: they render to what Kubernetes takes, or are refused with a reason."""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.chart.conftest import Judge
from tests.chart.release import HELMS, Release, RenderFailed, rendered, selects
from tests.chart.test_security import violations

pytestmark = pytest.mark.chart

# A failure is found again by the same seed; making it smaller would render for minutes.
SEEDED = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}

LABELS = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8})?", fullmatch=True),
    st.from_regex(r"[a-z0-9]{0,8}", fullmatch=True),
    max_size=2,
)
NOTES = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.sampled_from(["true", "1", "", "{{ x }}", "a: b", "#"])
)
NAME = st.from_regex(r"([a-z]([-a-z0-9]{0,61}[a-z0-9])?)?", fullmatch=True)
RELEASE = st.from_regex(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?", fullmatch=True)
PORT = st.integers(1, 65535)
SECONDS = st.one_of(st.integers(0, 3600), st.floats(0, 600).map(lambda seconds: round(seconds, 2)))
URL = st.sampled_from(["sim://", "http://vllm:8000", "dns+http://vllm-headless:8000"])


def some(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these values and not the others."""
    return st.fixed_dictionaries({}, optional=parts)


CONFIG = some(
    backends=URL.map(lambda url: [{"url": url}]),
    mode=st.sampled_from(["enforce", "shadow"]),
    share=st.floats(0.05, 1),
    listen=some(
        port=st.integers(1000, 65535),
        admin_port=st.integers(1000, 65535),
        prestop_seconds=SECONDS,
        drain_seconds=SECONDS,
    ),
    limits=some(max_body_bytes=st.integers(1, 2**40)),
    degrade=some(trim_factor=st.floats(0.1, 1), max_output_tokens=st.integers(1, 10**6)),
)
VALUES = some(
    replicaCount=st.integers(0, 9),
    image=some(tag=st.sampled_from(["", "1.2.3", "1.10"]), pullPolicy=st.sampled_from(["Always", "Never"])),
    nameOverride=NAME,
    fullnameOverride=NAME,
    commonLabels=LABELS,
    podLabels=LABELS,
    podAnnotations=NOTES,
    config=CONFIG,
    terminationGracePeriodSeconds=st.one_of(st.just(""), st.integers(30, 4000)),
    service=some(port=PORT, type=st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"]), annotations=NOTES),
    adminService=some(port=PORT, annotations=NOTES),
    serviceAccount=some(create=st.booleans(), name=NAME, annotations=NOTES),
    autoscaling=some(enabled=st.booleans(), minReplicas=st.integers(1, 5), maxReplicas=st.integers(1, 9)),
    podDisruptionBudget=some(
        enabled=st.booleans(),
        minAvailable=st.sampled_from(["", 0, 1, "50%"]),
        maxUnavailable=st.sampled_from(["", 0, 2, "25%"]),
    ),
    networkPolicy=some(enabled=st.booleans(), adminFrom=st.just([])),
    monitor=some(kind=st.sampled_from(["", "ServiceMonitor", "PodMonitor"]), labels=LABELS),
    keda=some(enabled=st.booleans(), scaleTargetRef=st.just({"name": "vllm"}), threshold=st.floats(0.1, 2)),
    httpRoute=some(enabled=st.booleans(), parentRefs=st.just([{"name": "public"}])),
    ingress=some(enabled=st.booleans(), hosts=st.just([{"host": "llm.example.com"}]), annotations=NOTES),
)


# Where there is a rule that two values can break together.
RULED = ("config.listen", "autoscaling.", "podDisruptionBudget", "keda.", "httpRoute.", "ingress.")


def rendered_or_refused(values: dict[str, Any], program: str, name: str) -> Release | None:
    """None where a rule was broken; whatever else Helm says is a failure."""
    try:
        return rendered(values, program=program, name=name)
    except RenderFailed as refused:
        if any(part in str(refused) for part in RULED):
            return None
        raise


@pytest.mark.parametrize("program", HELMS)
@settings(max_examples=20, phases=[Phase.generate], **SEEDED)
@given(values=VALUES, name=RELEASE)
def test_they_render_or_are_refused(judge: Judge, program: str, values: dict[str, Any], name: str) -> None:
    """What is refused names a value; what is not is valid, restricted, short enough, and fits together."""
    release = rendered_or_refused(values, program, name)
    if release is None:
        return
    assert judge(release.objects) == []
    assert list(violations(release.pod)) == []
    labels = release.template["metadata"]["labels"]
    listen = release.settings.get("listen", {})
    waits = listen.get("prestop_seconds", 5) + listen.get("drain_seconds", 30)
    assert release.pod["terminationGracePeriodSeconds"] > waits
    for component in ("proxy", "admin"):
        assert selects(release.service(component)["spec"]["selector"], labels)
    assert all(len(each["metadata"]["name"]) <= 63 for each in release.objects)
    assert 0 < release.settings["share"] <= 1
