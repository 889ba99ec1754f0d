"""Settings of what kvguard sends by itself."""

import pytest
from pydantic import ValidationError

from kvguard.admission.tiers import Tier
from kvguard.observability_sections import AlertSettings


def test_nothing_is_sent_by_default() -> None:
    """There is no receiver unless one is named."""
    assert AlertSettings().receiver() is None


@pytest.mark.parametrize(("name", "alertmanager"), [("alertmanager_url", True), ("webhook_url", False)])
def test_the_named_receiver_is_used_and_its_password_not_shown(name: str, alertmanager: bool) -> None:
    """The receiver has the whole address, printed settings have nothing of it."""
    settings = AlertSettings(**{name: "http://user:secret@host/x"}, instance="pod-1", min_tier=2)
    receiver = settings.receiver()
    assert receiver is not None
    assert (receiver.url, receiver.alertmanager) == ("http://user:secret@host/x", alertmanager)
    assert receiver.instance == "pod-1"
    assert settings.policy().min_tier is Tier.RESTRICT
    assert "secret" not in settings.model_dump_json() + repr(settings) + repr(receiver)


@pytest.mark.parametrize(
    "given",
    [
        {"alertmanager_url": "http://a", "webhook_url": "http://b"},
        {"alertmanager_url": "ftp://user:secret@a"},
        {"min_tier": 0},
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, object]) -> None:
    """Two receivers, another scheme and the tier of calm are faults."""
    with pytest.raises(ValidationError):
        AlertSettings(**given)
