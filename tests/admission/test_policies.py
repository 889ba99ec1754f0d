"""The table of policies: first match first, then the class."""

import pytest

from kvguard.admission.decision import AdmissionPolicy
from kvguard.admission.policies import NORMAL, PolicyRow, PolicyTable, PriorityClass
from kvguard.admission.policy import DegradePolicy
from kvguard.admission.tiers import TierPolicy


def policy(margin: float) -> AdmissionPolicy:
    return AdmissionPolicy(tiers=TierPolicy(exit_margin=margin), degrade=DegradePolicy())


PLAIN, LOW, CHAT, CHAT_LOW, LLAMA, LLAMA_LOW = (policy(number / 100) for number in range(6))
TABLE = PolicyTable(
    (
        PolicyRow(by_class={NORMAL: LLAMA, "low": LLAMA_LOW}, models="llama-*"),
        PolicyRow(by_class={NORMAL: CHAT, "low": CHAT_LOW}, routes=frozenset({"/chat"})),
        PolicyRow(by_class={NORMAL: PLAIN, "low": LOW}),
    ),
    (PriorityClass(), PriorityClass(name="low", rank=1)),
)


@pytest.mark.parametrize(
    ("model", "route", "priority", "expected"),
    [
        ("tiny", "/text", NORMAL, PLAIN),
        ("tiny", "/text", "low", LOW),
        ("tiny", "/text", "unheard-of", PLAIN),
        ("tiny", "/chat", NORMAL, CHAT),
        ("llama-3", "/chat", NORMAL, LLAMA),
        ("llama-3", "/text", "low", LLAMA_LOW),
        ("Llama-3", "/text", "low", LOW),
        (None, "/chat", "low", CHAT_LOW),
        (None, "/text", NORMAL, PLAIN),
    ],
)
def test_the_first_row_that_covers_a_request_counts(
    model: str | None, route: str, priority: str, expected: AdmissionPolicy
) -> None:
    """By model and route; a class that does not exist is the normal one."""
    assert TABLE.of(model, route, priority) is expected


@pytest.mark.parametrize(
    ("route", "priority", "expected"),
    [
        ("/text", NORMAL, (LLAMA, PLAIN)),
        ("/chat", NORMAL, (LLAMA, CHAT)),
        ("/chat", "low", (LLAMA_LOW, CHAT_LOW)),
    ],
)
def test_what_may_apply_while_the_model_is_not_known(
    route: str, priority: str, expected: tuple[AdmissionPolicy, ...]
) -> None:
    """Every row of the route down to the first for all models; asked again, the same."""
    assert TABLE.possible(route, priority) == TABLE.possible(route, priority) == expected


def test_a_plain_table_has_one_policy_for_everything() -> None:
    """No other thresholds need a state of their own."""
    table = PolicyTable.plain(PLAIN)
    assert table.of("m", "/r", "low") is table.default is PLAIN
    assert table.possible("/r", "low") == (PLAIN,)
    assert table.other_tiers == ()


def test_thresholds_of_their_own_are_listed_once() -> None:
    """All but those of the default."""
    twice = PolicyTable(
        (*([PolicyRow(by_class={NORMAL: LOW}, models="m")] * 2), PolicyRow(by_class={NORMAL: PLAIN})), ()
    )
    assert twice.other_tiers == (LOW.tiers,)
