"""Judges manifests, in the environment of .chart-tools: a JSON list a line in, a JSON list of faults a line out.

Kubernetes' own kinds are held against its strict schemas of three versions, others against those of their operators, in
which unknown fields are forbidden. A kind without a schema is a fault.
"""

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import kubernetes_validate.utils
from cloudcoil.models.keda import v1alpha1
from cloudcoil.models.prometheus_operator import v1
from jsonschema import Draft202012Validator

VERSIONS = ("1.25", "1.31", "1.37")
MODELS = {
    "ServiceMonitor": v1.ServiceMonitor,
    "PodMonitor": v1.PodMonitor,
    "PrometheusRule": v1.PrometheusRule,
    "ScaledObject": v1alpha1.ScaledObject,
}

# It reads megabytes of schemas anew for every object.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)


def closed(node: Any) -> Any:
    """The same schema without room for fields it does not name."""
    if isinstance(node, list):
        return [closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: closed(value) for key, value in node.items()}
    if "properties" in made and made.get("additionalProperties") in (None, True):
        made["additionalProperties"] = False
    return made


CUSTOM = {kind: Draft202012Validator(closed(model.model_json_schema(by_alias=True))) for kind, model in MODELS.items()}
CUSTOM["HTTPRoute"] = Draft202012Validator(json.loads((Path(__file__).parent / "httproute.json").read_text()))


def faults(manifest: dict[str, Any]) -> Iterator[str]:
    """What is wrong with it."""
    kind = manifest["kind"]
    if kind in CUSTOM:
        yield from (f"{kind}: {error.json_path}: {error.message}" for error in CUSTOM[kind].iter_errors(manifest))
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            yield f"{kind} in {version}: {str(error)[:500]}"


for line in sys.stdin:
    print(json.dumps([fault for manifest in json.loads(line) for fault in faults(manifest)]), flush=True)
