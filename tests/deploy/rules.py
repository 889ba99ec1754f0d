"""The rule file of `deploy/prometheus/`, read."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = PROMETHEUS / "kvguard.rules.yaml"


@cache
def rules() -> tuple[dict[str, Any], ...]:
    """Every rule of every group."""
    return tuple(rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"])


def alerts() -> dict[str, dict[str, Any]]:
    """The alerting rules by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}
