"""A release as Helm renders it, without a cluster."""

import json
import subprocess
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".chart-tools"
CHART = ROOT / "helm" / "kvguard"
HELMS = ("helm3", "helm4")

# The one of libyaml; the dashboard takes seconds otherwise.
LOADER = yaml.CSafeLoader


class RenderFailed(Exception):
    """What Helm said."""


def helm(*arguments: str, program: str = "helm4", values: dict[str, Any] | None = None) -> str:
    """What the command prints; raises RenderFailed with its complaint."""
    done = subprocess.run(
        [str(TOOLS / program), *arguments, *(("-f", "-") if values is not None else ())],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RenderFailed(done.stderr + done.stdout)
    return done.stdout


@dataclass(frozen=True)
class Release:
    """The objects of one release."""

    objects: tuple[dict[str, Any], ...]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        """The only one of its kind."""
        (only,) = self.all(kind)
        return only

    def service(self, component: str) -> dict[str, Any]:
        return next(
            each
            for each in self.all("Service")
            if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == component
        )

    @cached_property
    def template(self) -> dict[str, Any]:
        return self.one("Deployment")["spec"]["template"]

    @cached_property
    def pod(self) -> dict[str, Any]:
        return self.template["spec"]

    @cached_property
    def container(self) -> dict[str, Any]:
        return self.pod["containers"][0]

    @cached_property
    def config_map(self) -> dict[str, Any]:
        """The one that is mounted."""
        (volume,) = (each for each in self.pod["volumes"] if each["name"] == "config")
        name = volume["configMap"]["name"]
        return next(each for each in self.all("ConfigMap") if each["metadata"]["name"] == name)

    @cached_property
    def settings(self) -> dict[str, Any]:
        return yaml.load(self.config_map["data"]["kvguard.yaml"], LOADER)


def rendered(
    values: dict[str, Any] | None = None, *, program: str = "helm4", name: str = "kvguard", namespace: str = "llm"
) -> Release:
    """The chart with these values."""
    text = _template(name, namespace, program, json.dumps(values or {}))
    return Release(tuple(each for each in yaml.load_all(text, LOADER) if each))


@cache
def _template(name: str, namespace: str, program: str, values: str) -> str:
    """The same values are asked about by many tests."""
    return helm("template", name, str(CHART), "--namespace", namespace, program=program, values=json.loads(values))


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    """Whether every label is there; none selects all, which nobody means."""
    return bool(selector) and selector.items() <= labels.items()
