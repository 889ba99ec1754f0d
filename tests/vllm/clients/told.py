"""What a client script tells: a JSON line for each call, the same whatever stands between client and engine."""

import json
import sys
from collections.abc import Callable, Mapping

WEATHER = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
QUESTION = "Name a city."
PROMPT = "Once upon a time"


def tell_all(calls: Mapping[str, Callable[[], Mapping[str, object]]]) -> None:
    """Make the calls that the command line names, all of them if it names none, and tell how each went."""
    for name in sys.argv[2:] or calls:
        try:
            outcome = calls[name]()
        except Exception as error:  # noqa: BLE001  whatever a client raises is what is told
            outcome = {"error": type(error).__name__, "status": getattr(error, "status_code", None), "text": str(error)}
        print(json.dumps({"call": name, **outcome}), flush=True)
