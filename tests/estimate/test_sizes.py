"""Byte sizes as people write and read them."""

import pytest

from kvguard.estimate.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 << 30),
        ("24 GiB", 24 << 30),
        ("24g", 24 << 30),
        ("24G", 24 << 30),
        ("24 GB", 24 * 10**9),
        ("24gb", 24 * 10**9),
        ("4.2GiB", 4509715660),
        ("0.5 TiB", 1 << 39),
        ("16384m", 16 << 30),
        ("25769803776", 24 << 30),
        ("512 B", 512),
        ("0", 0),
        (" 1KiB ", 1024),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    """IEC units and single letters are binary, SI units decimal, a number alone is bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1GiB", "24XB", "24 G B", "1e9", "nan", "inf", "24ib", "1,5GiB", "٢٤GiB", "24", "9" * 400, "2048PiB"],
)
def test_anything_else_is_refused(text: str) -> None:
    """A size that is not one, too large, or bare and tiny, is an error."""
    with pytest.raises(ValueError, match=r"expected|too few"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (131072, "128 KiB"),
        (1 << 30, "1 GiB"),
        (1342177280, "1.25 GiB"),
        (14483464192, "13.5 GiB"),
        (1000 << 20, "1,000 MiB"),
        (1 << 60, "1,024 PiB"),
    ],
)
def test_sizes_are_shown_with_three_digits(size: int, text: str) -> None:
    """Binary units, no trailing zeros."""
    assert format_size(size) == text
