"""Byte sizes as people write and read them. Knows no model."""

import re
from typing import Final

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*(?:([kmgtp]?)(b?)|([kmgtp])ib)", re.IGNORECASE | re.ASCII)
_LARGEST: Final = 1 << 60
_SMALLEST_BARE: Final = 1 << 20  # nobody means fewer bytes than this without saying so


def parse_size(text: str) -> int:
    """Read a size: "24GiB" and "24g" are binary, "24 GB" decimal, a number alone is bytes. Raise ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a size such as 24GiB or 24 GB, got {text!r}")
    number, prefix = match[1], (match[2] or match[4] or "").lower()
    base = 1000 if match[3] else 1024
    whole, _, fraction = number.partition(".")
    scale = base ** _POWERS[prefix]
    size: int = int(whole) * scale + int(fraction or 0) * scale // 10 ** len(fraction)
    if size > _LARGEST:
        raise ValueError(f"expected at most {format_size(_LARGEST)}, got {text!r}")
    if not prefix and not match[3] and 0 < size < _SMALLEST_BARE:
        raise ValueError(f"{text} bytes are too few; give a unit, such as {text}GiB")
    return size


def format_size(size: int) -> str:
    """Three digits and a binary unit: 128 KiB, 1.25 GiB."""
    power = 0
    while power < len(_BINARY) - 1 and size >= 1024 ** (power + 1):
        power += 1
    if power == 0:
        return f"{size} B"
    value = size / 1024**power
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    text = f"{value:,.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {_BINARY[power]}"
