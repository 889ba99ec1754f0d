"""Reading a request by the fields its route's schema has: the engine ignores every other, and so must kvguard."""

from collections.abc import Iterable
from dataclasses import replace

from kvguard.protocols.fields import Fields
from kvguard.protocols.prompts import Prompt
from kvguard.protocols.request import CapRule, InferenceRequest, read_common


def read_known(body: bytes, fields: Fields, prompt: Prompt, caps: CapRule, known: Iterable[str]) -> InferenceRequest:
    """As `read_common` of a route without `n`, only the `known` fields read; all are kept, to be forwarded.

    Raises InvalidRequest naming the field at fault.
    """
    read = {name: fields[name] for name in known if name in fields}
    return replace(read_common(body, read, prompt, caps, copied=False), fields=fields, params=fields)
