"""Why a proxy is not ready, in words that tell what to do."""

import pytest

from kvguard.proxy.readiness import obstacles, usable
from tests.proxy.test_controller import backend, controller


def test_a_full_backend_is_usable_and_in_nobodys_way() -> None:
    """How much is in use is no matter of readiness."""
    full = backend("b", 1.0)
    assert usable(full, 0.0)
    assert obstacles(controller(full)[0], {}, 0.0) == ()


@pytest.mark.parametrize(
    ("trouble", "said"),
    [("ConnectError", "b: cannot be reached (ConnectError)"), ("", "b: cannot be reached")],
)
def test_a_server_that_does_not_answer_is_told_with_what_the_last_look_met(trouble: str, said: str) -> None:
    """Before the first look there is nothing more to say."""
    made = backend("b", None)
    assert not usable(made, 0.0)
    assert obstacles(controller(made)[0], {"b": trouble} if trouble else {}, 0.0) == (said,)


def test_only_those_that_are_in_the_way_are_told() -> None:
    """One that works is enough to be ready; the others are told all the same."""
    made, _ = controller(backend("a", 0.5), backend("b", None))
    assert obstacles(made, {}, 0.0) == ("b: cannot be reached",)


def test_a_server_that_answers_without_a_capacity_needs_a_setting() -> None:
    """It was reached, so looking at the network would be in vain."""
    made = backend("b", None)
    made.occupancy.miss(reached=True)
    text = "b: answers, but the size of its KV cache is neither on its /metrics nor in the settings (no gauge)"
    assert obstacles(controller(made)[0], {"b": "no gauge"}, 0.0) == (text,)


def test_a_server_that_leaves_is_told_as_such() -> None:
    """Discovery does not find it any more."""
    made = backend("b", 0.5)
    made.health.leaving = True
    assert obstacles(controller(made)[0], {}, 0.0) == ("b: takes no new requests (leaving)",)


def test_no_server_at_all_is_told() -> None:
    """As long as a name has no address."""
    assert obstacles(controller()[0], {}, 0.0) == ("no server has been found yet",)
