"""Numbers and truth values as a strictly typed server reads them: nothing is taken for something else.

"5", 5.0 and 1e1 are no integers there, and neither are 1 and "true" truth values. An explicit null is taken for an
absent field; where the server does not, it says so itself.
"""

import re
from typing import Final

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, is_set, members, opens

_DIGITS: Final = re.compile(rb"\d{1,10}")
_LIMIT: Final = 2**32
_TRUTH: Final = {b"true": True, b"false": False}


def read_count(fields: Fields, name: str) -> int | None:
    """A whole number from 0 that has 32 bits at most, None when absent or null. Raises InvalidRequest otherwise."""
    if not is_set(fields, name):
        return None
    text = memoryview(fields[name])[: len(str(_LIMIT)) + 1].tobytes()
    if _DIGITS.fullmatch(text) and int(text) < _LIMIT:
        return int(text)
    raise InvalidRequest(f"'{name}' must be a whole number from 0 to {_LIMIT - 1}", param=name)


def read_positive(fields: Fields, name: str) -> int | None:
    """As `read_count`, from 1."""
    count = read_count(fields, name)
    if count == 0:
        raise InvalidRequest(f"'{name}' must be at least 1", param=name)
    return count


def read_flag(fields: Fields, name: str) -> bool:
    """A truth value, False when absent or null. Raises InvalidRequest otherwise."""
    if not is_set(fields, name):
        return False
    value = _TRUTH.get(memoryview(fields[name])[:6].tobytes())
    if value is None:
        raise InvalidRequest(f"'{name}' must be true or false", param=name)
    return value


def read_object(fields: Fields, name: str) -> Fields:
    """The members of an object, none when absent or null.

    Raises InvalidRequest otherwise, also on a list: such a server takes one for the members in their order.
    """
    if is_set(fields, name) and not opens(fields[name], b"{"):
        raise InvalidRequest(f"'{name}' must be an object", param=name)
    return members(fields[name], name) if is_set(fields, name) else {}
