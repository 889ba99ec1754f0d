"""How many token ids a list has, told by its commas: building millions of numbers would take seconds.

Only lists of plain numbers can be told; `None` leaves anything else to whoever reads value by value.
"""

_NUMBERS = b"0123456789, \t\r\n"
_PEEK = 64


def flat_ids(raw: bytes) -> int | None:
    """The length of `[1, 2]`."""
    if _is_other(raw):
        return None
    brackets = raw.translate(None, _NUMBERS)
    return raw.count(b",") + 1 if brackets == b"[]" and raw.strip()[1:-1].strip() else None


def id_lists(raw: bytes, *, most: int) -> tuple[int, ...] | None:
    """The lengths of the lists in `[[1, 2], [3]]`, of which there are at most so many."""
    if _is_other(raw):
        return None
    brackets = raw.translate(None, _NUMBERS)
    lists = len(brackets) // 2 - 1
    if not 1 <= lists <= most or brackets != b"[" + b"[]" * lists + b"]":
        return None
    parts = [part.partition(b"[") for part in raw.strip()[1:].split(b"]")]
    between = [before.strip() for before, _, _ in parts]
    inner = [ids for _, _, ids in parts[:lists]]
    if between != [b"", *[b","] * (lists - 1), b"", b""] or not all(map(bytes.strip, inner)):
        return None
    return tuple(ids.count(b",") + 1 for ids in inner)


def _is_other(raw: bytes) -> bool:
    """Whether the first bytes already show that these are no ids."""
    return raw[:_PEEK].strip(_NUMBERS + b"[]") != b""
