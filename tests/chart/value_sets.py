"""Values people install the chart with."""

from pathlib import Path
from typing import Any

import yaml

from tests.chart.release import ROOT

EXAMPLES = ROOT / "helm" / "examples"
VLLM = {"config": {"backends": [{"url": "http://vllm:8000"}]}}


def _example(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one vllm": VLLM,
    "three replicas": {"replicaCount": 3, **VLLM},
    "none for now": {"replicaCount": 0},
    "share by hand": {"replicaCount": 2, "config": {"share": 0.25}},
    "shadow": {"config": {"mode": "shadow"}},
    "other ports": {
        "config": {"listen": {"port": 18080, "admin_port": 19090}},
        "service": {"port": 80},
        "adminService": {"port": 9999},
    },
    "long answers": {"config": {"listen": {"drain_seconds": 600, "prestop_seconds": 12.5}}},
    "grace by hand": {"terminationGracePeriodSeconds": 36},
    "names": {"fullnameOverride": "gate", "commonLabels": {"team": "serving"}},
    "another name": {"nameOverride": "gate"},
    "image by digest": {"image": {"digest": "sha256:" + "0" * 64}, "imagePullSecrets": [{"name": "registry"}]},
    "service monitor": {
        "monitor": {"kind": "ServiceMonitor", "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True, "annotations": {"grafana_folder": "LLM"}},
    },
    "pod monitor": {
        "monitor": {
            "kind": "PodMonitor",
            "relabelings": [{"action": "labeldrop", "regex": "pod"}],
            "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": ".*_created"}],
        }
    },
    "autoscaling": {
        "autoscaling": {"enabled": True, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}}},
        "podDisruptionBudget": {"minAvailable": "50%"},
    },
    "keda": {"keda": {"enabled": True, "scaleTargetRef": {"name": "vllm"}}},
    "network policy": {
        "networkPolicy": {"enabled": True, "trafficFrom": [{"podSelector": {"matchLabels": {"app": "web"}}}]}
    },
    "ingress": {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": [{"host": "llm.example.com"}],
            "tls": [{"secretName": "llm-tls", "hosts": ["llm.example.com"]}],
        }
    },
    "http route": {
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "infra"}],
            "hostnames": ["llm.example.com"],
        }
    },
    "secrets": {
        "extraEnv": [
            {"name": "KVGUARD_IDENTITY__KEYS", "valueFrom": {"secretKeyRef": {"name": "callers", "key": "keys.json"}}}
        ],
        "extraEnvFrom": [{"secretRef": {"name": "kvguard-env"}}],
        "extraVolumes": [{"name": "tokenizer", "secret": {"secretName": "tokenizer"}}],
        "extraVolumeMounts": [{"name": "tokenizer", "mountPath": "/etc/tokenizer", "readOnly": True}],
    },
    "placement": {
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "serving",
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
    },
    "claim": {"state": {"existingClaim": "lengths"}, "strategy": {"type": "Recreate", "rollingUpdate": None}},
    "no account": {"serviceAccount": {"create": False}},
    "refusals a mesh does not repeat": {"config": {"reject": {"status": {"saturated": 429}}}},
    "large numbers": {"config": {"limits": {"max_body_bytes": 268435456}, "decision_log": {"max_bytes": 10000000000}}},
    "extra": {
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "{{ .Release.Name }}-more"},
                "data": {"a": "b"},
            }
        ]
    },
    **{f"example {path.stem}": _example(path) for path in sorted(EXAMPLES.glob("values-*.yaml"))},
}
