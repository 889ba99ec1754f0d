"""Slices for tests: one visit in which everything that matters is what the test says."""

from bench.overload.slices import Slice


def visited(arm: str, *, load: float = 4.0, number: int = 0, shape: str = "chat", **fields: object) -> Slice:
    """Ten seconds of an engine that finishes one answer of 100 tokens a second; so goodput is a tenth of `good`."""
    good = fields.pop("good", 10)
    whole = fields.pop("whole_good", good)
    known = {
        "capacity": 1.0,
        "seconds": 10.0,
        "offered": round(10 * load),
        "wanted_tokens": round(1000 * load),
        "prompt_good": good,
        "good_tokens": 100 * good,
        "whole_good_tokens": 100 * whole,
        "refused": 0,
        "timed_out": 0,
        "failed": 0,
        "first_tokens": [0.1, 0.2, 0.3],
        "preemptions": 0.0,
    }
    known["sent_in_all"] = fields.get("offered", known["offered"]) - fields.get("refused", 0)
    return Slice(round=number, shape=shape, arm=arm, load=load, good=good, whole_good=whole, **{**known, **fields})
