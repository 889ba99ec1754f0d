"""TGI's POST /vertex, as Google's endpoints call it: several requests in one, each native or a chat, never a stream.

They run side by side. Of how to generate only the cap and the seed are looked at.
"""

from dataclasses import replace
from typing import Final

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, entries, opens, read_fields, refuse_many_values
from kvguard.protocols.openai_completions import MAX_PROMPTS
from kvguard.protocols.prompts import ChatPrompt, PromptList, TextPrompts
from kvguard.protocols.request import CapRule, Copies, InferenceRequest
from kvguard.protocols.route import Route
from kvguard.protocols.tgi_chat import chat
from kvguard.protocols.tgi_errors import TGI_ERRORS
from kvguard.protocols.tgi_generate import native
from kvguard.protocols.tgi_prompt import only_prompt_field

PATH: Final = "/vertex"
INSTANCES: Final = "instances"
# Each instance has its own.
CAPS: Final = CapRule(names=(), default_tokens=None)


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    parts = tuple(_instance(raw) for raw in _instances(fields))
    request = InferenceRequest(
        body=body,
        fields=fields,
        params=fields,
        inside=INSTANCES,
        caps=CAPS,
        prompt=PromptList(tuple(part.prompt for part in parts if isinstance(part.prompt, TextPrompts | ChatPrompt))),
        parts=parts,
        stream=False,
        copies=1,
        beams=False,
        copied_by=Copies.NONE,
        requested_cap=None,
        min_tokens=0,
        truncate_to=None,
        fixed_length=False,
        traits=frozenset(trait for part in parts for trait in part.traits),
        runs_tools=any(part.runs_tools for part in parts),
    )
    return replace(request, requested_cap=request.cap_under(None))


def _instances(fields: Fields) -> list[msgspec.Raw]:
    listed = fields.get(INSTANCES, msgspec.Raw(b"null"))
    refuse_many_values(listed, INSTANCES)
    instances = entries(listed, INSTANCES)
    if not instances or not all(opens(instance, b"{") for instance in instances):
        raise InvalidRequest(f"'{INSTANCES}' must be a list of at least one object", param=INSTANCES)
    if len(instances) > MAX_PROMPTS:
        raise InvalidRequest(f"'{INSTANCES}' has more than {MAX_PROMPTS} entries", param=INSTANCES)
    return instances


def _instance(raw: msgspec.Raw) -> InferenceRequest:
    body = bytes(raw)
    fields = read_fields(body)
    if only_prompt_field(fields) != "inputs":
        return chat(body, fields)
    read = native(body, fields, stream=False)
    return replace(read, copies=1, beams=False, copied_by=Copies.NONE, truncate_to=None, traits=frozenset())


ROUTE: Final = Route(path=PATH, parse=parse, errors=TGI_ERRORS)
