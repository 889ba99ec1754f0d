"""Outcomes in their colours, and states of backends as numbers a timeline can draw, with names and colours.

0 to 3 are tiers, so that the largest of all is the worst; from 10 on something is broken rather than busy.
"""

from collections.abc import Mapping

from grafana.panel import Colour, Meaning, Style
from grafana.queries import of_backend, ours, worst

OUTCOMES = {
    "admitted": Style(colour=Colour.CALM),
    "degraded": Style(colour=Colour.TRIM),
    "rejected": Style(colour=Colour.REJECT),
    "failed": Style(colour=Colour.FAULT),
}
TIERS = {
    0: Meaning(text="Normal", colour=Colour.CALM),
    1: Meaning(text="Trim", colour=Colour.TRIM),
    2: Meaning(text="Restrict", colour=Colour.RESTRICT),
    3: Meaning(text="Reject", colour=Colour.REJECT),
}
TROUBLE = {
    0: Meaning(text="Calm", colour=Colour.CALM),
    1: Meaning(text="Overload: trims", colour=Colour.TRIM),
    2: Meaning(text="Overload: restricts", colour=Colour.RESTRICT),
    3: Meaning(text="Overload: refuses", colour=Colour.REJECT),
    10: Meaning(text="Fault: gauge stale", colour=Colour.FAULT),
    11: Meaning(text="Fault: no gauge", colour=Colour.FAULT),
    12: Meaning(text="Engine sleeps", colour=Colour.FAULT),
    13: Meaning(text="Fault: full but idle", colour=Colour.FAULT),
    14: Meaning(text="Fault: engine stalled", colour=Colour.FAULT),
    15: Meaning(text="Fault: ejected", colour=Colour.FAULT),
    16: Meaning(text="Fault: unreachable", colour=Colour.FAULT),
}
TELEMETRY = {
    0: Meaning(text="fresh", colour=Colour.CALM),
    1: Meaning(text="stale", colour=Colour.TRIM),
    2: Meaning(text="missing", colour=Colour.RESTRICT),
    3: Meaning(text="unreachable", colour=Colour.REJECT),
}
CONDITIONS = {
    0: Meaning(text="unknown", colour=Colour.DIM),
    1: Meaning(text="idle", colour=Colour.PLAIN),
    2: Meaning(text="working", colour=Colour.CALM),
    3: Meaning(text="sleeping", colour=Colour.TRIM),
    4: Meaning(text="contradiction", colour=Colour.FAULT),
    5: Meaning(text="stalled", colour=Colour.REJECT),
}
STANDINGS = {
    0: Meaning(text="in", colour=Colour.CALM),
    1: Meaning(text="probed", colour=Colour.TRIM),
    2: Meaning(text="drained", colour=Colour.PLAIN),
    3: Meaning(text="leaving", colour=Colour.DIM),
    4: Meaning(text="ejected", colour=Colour.REJECT),
}
PHASES = {
    0: Meaning(text="serving", colour=Colour.CALM),
    1: Meaning(text="stopping", colour=Colour.PLAIN),
    2: Meaning(text="draining", colour=Colour.DIM),
    3: Meaning(text="starting", colour=Colour.TRIM),
}
NOT_READY = {4: Meaning(text="not ready", colour=Colour.REJECT)}


def numbered(metric: str, label: str, meanings: Mapping[int, Meaning]) -> str:
    """A metric that is 1 for one value of a label, as the number of that value: the worst of all replicas."""
    parts = (_times(number, holds(metric, label, meaning.text)) for number, meaning in meanings.items())
    return worst(" or ".join(parts), "backend")


def trouble() -> str:
    """The tier in force, or the number of what is broken."""
    telemetry, condition = "kvguard_telemetry_state", "kvguard_engine_condition"
    faults = {
        10: holds(telemetry, "state", "stale"),
        11: holds(telemetry, "state", "missing"),
        12: holds(condition, "state", "sleeping"),
        13: holds(condition, "state", "contradiction"),
        14: holds(condition, "state", "stalled"),
        15: holds("kvguard_backend_standing", "standing", "ejected"),
        16: holds(telemetry, "state", "unreachable"),
    }
    parts = [of_backend("kvguard_tier"), *(_times(number, fault) for number, fault in faults.items())]
    return worst(" or ".join(parts), "backend")


def phases() -> str:
    """What each instance is doing, or that it is not ready though it should serve."""
    parts = []
    for number, meaning in PHASES.items():
        matcher = f'phase="{meaning.text}"'
        parts.append(_times(number, f"{ours('kvguard_phase', matcher)} == 1"))
    serving = ours("kvguard_phase", 'phase="serving"')
    (not_ready,) = NOT_READY
    parts.append(_times(not_ready, f"{ours('kvguard_ready')} == 0 and on (job, instance) {serving} == 1"))
    return worst(" or ".join(parts), "instance")


def holds(metric: str, label: str, value: str) -> str:
    """The backends for which a state is the present one."""
    matcher = f'{label}=~"{value}"'
    return f"{of_backend(metric, matcher)} == 1"


def _times(number: int, state: str) -> str:
    return f"{number} * ({state})"
