"""POST /v1/messages: Anthropic's form of a conversation, which vLLM turns into a chat of one sequence."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kvguard.admission.footprint import Trait
from kvguard.errors import InvalidRequest
from kvguard.protocols.anthropic_errors import ANTHROPIC_ERRORS
from kvguard.protocols.anthropic_prompt import prompt_of
from kvguard.protocols.chat_form import refuse_many_values_in
from kvguard.protocols.fields import Fields, decode, is_filled, read_fields
from kvguard.protocols.known_fields import read_known
from kvguard.protocols.prompts import ChatPrompt, Prompt
from kvguard.protocols.request import CapRule, InferenceRequest
from kvguard.protocols.route import Route
from kvguard.protocols.sse import StreamFormat

PATH = "/v1/messages"
CAPS = CapRule(names=("max_tokens",), default_tokens=None)

# All of the schema that is not the prompt's and matters to the cache.
_KNOWN = ("model", "stream", "max_tokens", "tools")
_PROMPT_FIELDS = ("system", "messages", "tools", "thinking", "output_config", "chat_template_kwargs")
_THINKS = ("enabled", "adaptive")

# Text, thinking and the arguments of tools come as deltas alike, one a token.
STREAM: Final = StreamFormat(
    token=b"\nevent: content_block_delta",
    complete=re.compile(rb'\ndata: ?\{"type": ?"message_stop"'),
    failed=re.compile(rb"\nevent: ?error\r?\n"),
)


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault.

    System messages inside the conversation are counted where they stand. The engine merges them into the first for
    templates that cannot have them there; such a template refuses this form, and the prompt is then estimated: too high
    at most, where merging before a template that needs none would count too little.
    """
    fields = read_fields(body)
    refuse_many_values_in(fields, _PROMPT_FIELDS)
    prompt = prompt_of(fields)
    request = read_known(body, fields, prompt, CAPS, _KNOWN)
    if request.requested_cap is None:
        raise InvalidRequest("'max_tokens' is required", param="max_tokens")
    traits = request.traits.union(_traits(fields, prompt))
    return replace(request, traits=traits, stops=is_filled(fields, "stop_sequences"))


def _traits(fields: Fields, prompt: Prompt) -> Iterator[Trait]:
    """A thinking budget must stay below the cap, so a request that thinks is none to shorten."""
    if isinstance(prompt, ChatPrompt) and is_filled(prompt.fields, "tools"):
        yield Trait.TOOLS
    thinking, config = decode(fields, "thinking"), decode(fields, "output_config")
    if isinstance(thinking, dict) and thinking.get("type") in _THINKS:
        yield Trait.REASONING
    if isinstance(config, dict) and config.get("format") is not None:
        yield Trait.STRUCTURED_OUTPUT


ROUTE: Final = Route(path=PATH, parse=parse, errors=ANTHROPIC_ERRORS, stream=STREAM)
