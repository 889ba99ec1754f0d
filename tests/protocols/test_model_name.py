"""The one field that matters of a request that takes no KV."""

import pytest

from kvguard.protocols.model_name import model_named


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model": "m"}', "m"),
        (b'{"prompt": ["x", {"model": "other"}], "model": "\\u00e9/m"}', "\u00e9/m"),
        (b'{"model": "a", "model": "b"}', "b"),
        (b'{"model": ""}', ""),
        (b'{"model": null}', None),
        (b'{"model": 1}', None),
        (b'{"model": ["m"]}', None),
        (b'{"prompt": "model"}', None),
        (b'["model"]', None),
        (b'{"model": "m"', None),
        (b'{"model": "\xff"}', None),
        (b'{"model": "m", "x": ' + b"[" * 100_000, None),
        (b"", None),
    ],
)
def test_the_model_a_body_names(body: bytes, model: str | None) -> None:
    """Of two the last, as the engine reads it; what is wrong with a body is nobody's business here."""
    assert model_named(body) == model
