"""Selectors, labels, ports and addresses of one object are those of the other."""

from typing import Any

import pytest
import yaml

from tests.chart.release import ROOT, Release, rendered, selects
from tests.chart.value_sets import SETS
from tests.deploy.rules import RULES

pytestmark = pytest.mark.chart

NAMES = ("kvguard", "prod")
SCRAPED = {
    "ServiceMonitor": {"monitor": {"kind": "ServiceMonitor"}},
    "PodMonitor": {"monitor": {"kind": "PodMonitor"}},
}


def container_ports(release: Release) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in release.container["ports"]}


@pytest.mark.parametrize("values", SETS.values(), ids=SETS.keys())
def test_services_lead_to_the_pods(values: dict[str, Any]) -> None:
    """Each Service selects the pods by labels they have, and its port is one of the container."""
    release = rendered(values)
    labels = release.template["metadata"]["labels"]
    assert selects(release.one("Deployment")["spec"]["selector"]["matchLabels"], labels)
    for component, port in (("proxy", "http"), ("admin", "admin")):
        spec = release.service(component)["spec"]
        assert selects(spec["selector"], labels)
        assert [each["targetPort"] for each in spec["ports"]] == [port]
        assert port in container_ports(release)


def test_the_ports_are_those_of_the_settings() -> None:
    """The command listens where Services and probes look."""
    release = rendered(SETS["other ports"])
    assert container_ports(release) == {"http": 18080, "admin": 19090}
    assert release.container["args"][-2:] == ["--port=18080", "--admin-port=19090"]
    assert release.service("proxy")["spec"]["ports"][0]["port"] == 80


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "overrides", [{}, {"nameOverride": "gate"}, {"fullnameOverride": "gate"}], ids=["as is", "name", "full"]
)
def test_o37_the_service_monitor_selects_the_admin_service(name: str, overrides: dict[str, str]) -> None:
    """By labels of its metadata, a port it has, and a namespace it is in; of both Services it selects one."""
    release = rendered({**SCRAPED["ServiceMonitor"], **overrides}, name=name)
    spec = release.one("ServiceMonitor")["spec"]
    (found,) = (
        each for each in release.all("Service") if selects(spec["selector"]["matchLabels"], each["metadata"]["labels"])
    )
    assert found == release.service("admin")
    assert spec["endpoints"][0]["port"] in {each["name"] for each in found["spec"]["ports"]}
    assert spec["namespaceSelector"]["matchNames"] == [found["metadata"]["namespace"]] == ["llm"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "overrides", [{}, {"nameOverride": "gate"}, {"fullnameOverride": "gate"}], ids=["as is", "name", "full"]
)
def test_o37_the_pod_monitor_selects_the_pods(name: str, overrides: dict[str, str]) -> None:
    """By labels they have and a port of the container; the pod of `helm test` is not among them."""
    release = rendered({**SCRAPED["PodMonitor"], **overrides}, name=name)
    spec = release.one("PodMonitor")["spec"]
    assert selects(spec["selector"]["matchLabels"], release.template["metadata"]["labels"])
    assert not selects(spec["selector"]["matchLabels"], release.one("Pod")["metadata"]["labels"])
    assert spec["podMetricsEndpoints"][0]["port"] in container_ports(release)


@pytest.mark.parametrize("kind", SCRAPED)
@pytest.mark.parametrize(
    "overrides", [{}, {"nameOverride": "gate"}, {"fullnameOverride": "gate"}], ids=["as is", "name", "full"]
)
def test_o37_the_rules_find_what_is_scraped(kind: str, overrides: dict[str, str]) -> None:
    """The job has kvguard in its name, whatever the release is called, and the scrape is shorter than its interval."""
    release = rendered({**SCRAPED[kind], **overrides}, name="prod")
    spec = release.one(kind)["spec"]
    (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    assert endpoint["path"] == "/metrics"
    assert endpoint["honorLabels"] is False
    assert "kvguard" in next(each["replacement"] for each in endpoint["relabelings"] if each["targetLabel"] == "job")
    assert int(endpoint["scrapeTimeout"][:-1]) < int(endpoint["interval"][:-1])


def test_the_rules_arrive_as_they_are() -> None:
    """Templates of Prometheus in their texts are left alone by Helm."""
    spec = rendered(SETS["service monitor"]).one("PrometheusRule")["spec"]
    assert spec == yaml.safe_load(RULES.read_text())
    assert "{{ $labels." in str(spec)


def test_o38_the_dashboard_arrives_as_it_is() -> None:
    """Under the label the sidecar of Grafana looks for, with every legend's braces."""
    release = rendered(SETS["service monitor"])
    (board,) = (each for each in release.all("ConfigMap") if "kvguard.json" in each["data"])
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board["data"]["kvguard.json"].strip() == (ROOT / "grafana" / "kvguard.json").read_text().strip()


def test_the_admin_port_is_for_monitoring_alone() -> None:
    """Traffic may come from where it is said to, metrics be read by monitoring and the pod of `helm test`."""
    release = rendered(SETS["network policy"])
    policy = release.one("NetworkPolicy")["spec"]
    assert selects(policy["podSelector"]["matchLabels"], release.template["metadata"]["labels"])
    rules = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
    assert rules.keys() == container_ports(release).keys()
    assert rules["http"] == [{"podSelector": {"matchLabels": {"app": "web"}}}]
    tester, monitoring = rules["admin"]
    assert selects(tester["podSelector"]["matchLabels"], release.one("Pod")["metadata"]["labels"])
    assert monitoring == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def test_nobody_reaches_the_admin_port_through_the_front_door() -> None:
    """Ingress and HTTPRoute lead to the Service for traffic."""
    for name, values in (("Ingress", SETS["ingress"]), ("HTTPRoute", SETS["http route"])):
        release = rendered(values)
        service = release.service("proxy")
        if name == "Ingress":
            (path,) = release.one(name)["spec"]["rules"][0]["http"]["paths"]
            backend = path["backend"]["service"]
            assert backend["port"]["name"] == service["spec"]["ports"][0]["name"]
        else:
            (backend,) = release.one(name)["spec"]["rules"][0]["backendRefs"]
            assert backend["port"] == service["spec"]["ports"][0]["port"]
        assert backend["name"] == service["metadata"]["name"]


def test_a_gateway_lets_long_answers_end() -> None:
    """Its time for a request is an hour, not the seconds it has by default."""
    (rule,) = rendered(SETS["http route"]).one("HTTPRoute")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "3600s"}


def test_each_autoscaler_has_its_own_target() -> None:
    """CPU scales kvguard, demand the model servers; replicas are left to the first."""
    release = rendered({**SETS["autoscaling"], **SETS["keda"]})
    deployment = release.one("Deployment")
    assert "replicas" not in deployment["spec"]
    assert release.one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    scaled = release.one("ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == "vllm"
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["threshold"] == "0.7"
    assert (
        trigger["metadata"]["query"] == 'sum(max by (backend) (kvguard_demand_ratio{namespace="llm", job="kvguard"}))'
    )


@pytest.mark.parametrize(("values", "there"), [({}, False), ({"replicaCount": 2}, True), (SETS["autoscaling"], True)])
def test_a_budget_where_there_is_more_than_one_pod(values: dict[str, Any], there: bool) -> None:
    """With a single pod it would keep nodes from being emptied."""
    release = rendered(values)
    budgets = release.all("PodDisruptionBudget")
    assert bool(budgets) is there
    for each in budgets:
        assert selects(each["spec"]["selector"]["matchLabels"], release.template["metadata"]["labels"])


@pytest.mark.parametrize("values", [{}, SETS["placement"]], ids=["own", "given"])
def test_pods_are_spread(values: dict[str, Any]) -> None:
    """Over nodes, or over what is asked for, and it is these pods that are counted."""
    release = rendered(values)
    for each in release.pod["topologySpreadConstraints"]:
        assert selects(each["labelSelector"]["matchLabels"], release.template["metadata"]["labels"])


def test_the_account_has_no_rights() -> None:
    """It exists, the pod uses it, no token is mounted, and no role is bound to it."""
    release = rendered()
    account = release.one("ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert release.pod["serviceAccountName"] == account["metadata"]["name"]
    assert not {each["kind"] for each in release.objects} & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert rendered(SETS["no account"]).pod["serviceAccountName"] == "default"
