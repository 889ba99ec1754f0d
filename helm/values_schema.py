"""The schema of the values: names, kinds and descriptions from values.yaml, `config` from the settings model."""

import copy
from typing import Any, Final

import yaml

from helm.values_file import VALUES, Value, values
from kvguard.settings import Settings

Schema = dict[str, Any]

_PORT: Final = {"type": "integer", "minimum": 1, "maximum": 65535}
_COUNT: Final = {"type": "integer", "minimum": 0}
_AT_LEAST_ONE: Final = {"type": "integer", "minimum": 1}
_NAME: Final = {"type": "string", "maxLength": 63, "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"}
_DURATION: Final = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}
_GATEWAY_DURATION: Final = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
_QUANTITY: Final = {"type": "string", "pattern": "^[0-9]+([KMGT]i?)?$"}
_TEXTS: Final = {"type": "object", "additionalProperties": {"type": "string"}}
_OBJECTS: Final = {"type": "array", "items": {"type": "object"}}
_OBJECT: Final = {"type": "object"}
_NUMBER_OR_PERCENT: Final = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^([0-9]+%)?$"}]
}
_PROBE: Final = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "initialDelaySeconds": {**_COUNT, "description": "Wait before the first."},
        "periodSeconds": {**_AT_LEAST_ONE, "description": "Pause between two."},
        "timeoutSeconds": {**_AT_LEAST_ONE, "description": "Longest one."},
        "failureThreshold": {**_AT_LEAST_ONE, "description": "Failures in a row that count."},
    },
}

# What the default does not tell.
_KINDS: Final[dict[str, Schema]] = {
    "replicaCount": _COUNT,
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "nameOverride": _NAME,
    "fullnameOverride": _NAME,
    "commonLabels": _TEXTS,
    "extraEnv": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    "state.sizeLimit": _QUANTITY,
    "serviceAccount.name": _NAME,
    "serviceAccount.annotations": _TEXTS,
    "podAnnotations": _TEXTS,
    "podLabels": _TEXTS,
    "podSecurityContext": _OBJECT,
    "securityContext": _OBJECT,
    "resources": _OBJECT,
    "livenessProbe": _PROBE,
    "readinessProbe": _PROBE,
    "startupProbe": _PROBE,
    "terminationGracePeriodSeconds": {"anyOf": [_AT_LEAST_ONE, {"const": ""}]},
    "strategy": _OBJECT,
    "revisionHistoryLimit": _COUNT,
    "nodeSelector": _TEXTS,
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "service.port": _PORT,
    "service.annotations": _TEXTS,
    "adminService.port": _PORT,
    "adminService.annotations": _TEXTS,
    "ingress.annotations": _TEXTS,
    "ingress.hosts": {"type": "array", "items": {"type": "object", "required": ["host"]}},
    "httpRoute.annotations": _TEXTS,
    "httpRoute.hostnames": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "httpRoute.timeouts.request": _GATEWAY_DURATION,
    "autoscaling.minReplicas": _AT_LEAST_ONE,
    "autoscaling.maxReplicas": _AT_LEAST_ONE,
    "autoscaling.targetCPUUtilizationPercentage": _AT_LEAST_ONE,
    "keda.minReplicaCount": _COUNT,
    "keda.maxReplicaCount": _AT_LEAST_ONE,
    "keda.pollingInterval": _AT_LEAST_ONE,
    "keda.cooldownPeriod": _COUNT,
    "keda.threshold": {"type": "number", "exclusiveMinimum": 0},
    "podDisruptionBudget.minAvailable": _NUMBER_OR_PERCENT,
    "podDisruptionBudget.maxUnavailable": _NUMBER_OR_PERCENT,
    "monitor.kind": {"enum": ["", "ServiceMonitor", "PodMonitor"]},
    "monitor.labels": _TEXTS,
    "monitor.interval": _DURATION,
    "monitor.scrapeTimeout": _DURATION,
    "prometheusRule.labels": _TEXTS,
    "dashboard.labels": _TEXTS,
    "dashboard.annotations": _TEXTS,
}


def schema() -> Schema:
    """The whole of it, in the draft every Helm version reads."""
    settings, definitions = settings_schema()
    described = {value.path: value for value in values()}
    whole = _section(yaml.safe_load(VALUES.read_text()), (), described)
    config = whole["properties"]["config"]["description"]
    whole["properties"]["config"] = {**settings, "description": config}
    whole["properties"]["global"] = {"type": "object", "description": "What a parent chart hands to all; not used."}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **whole, "definitions": definitions}


def settings_schema() -> tuple[Schema, Schema]:
    """The settings file, and the sections it is made of."""
    given = _draft_07(Settings.model_json_schema())
    definitions = given.pop("definitions")
    return given, definitions


def _draft_07(node: Any) -> Any:
    """Without the titles pydantic makes of names, and without formats Helm knows nothing of."""
    if isinstance(node, list):
        return [_draft_07(each) for each in node]
    if not isinstance(node, dict):
        return node.replace("#/$defs/", "#/definitions/") if isinstance(node, str) else node
    made = {}
    for key, value in node.items():
        if key in ("title", "format") and isinstance(value, str):
            continue
        made["definitions" if key == "$defs" else key] = _draft_07(value)
    return made


def _section(defaults: dict[str, Any], path: tuple[str, ...], described: dict[tuple[str, ...], Value]) -> Schema:
    """A mapping of which every key is known."""
    properties = {}
    for key, default in defaults.items():
        value = described.get((*path, key))
        properties[key] = _leaf(value) if value else _section(default, (*path, key), described)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _leaf(value: Value) -> Schema:
    kind = copy.deepcopy(_KINDS.get(value.name) or _kind_of(value.default))
    return {"description": value.description, **kind}


def _kind_of(default: Any) -> Schema:
    match default:
        case bool():
            return {"type": "boolean"}
        case str():
            return {"type": "string"}
        case list():
            return dict(_OBJECTS)
        case dict():
            return dict(_OBJECT)
    raise TypeError(f"say what kind of value this is: {default!r}")
