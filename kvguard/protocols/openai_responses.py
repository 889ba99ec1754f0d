"""POST /v1/responses: `instructions` and `input` items, one sequence at a time.

With tools that the server itself runs the engine generates, runs a tool, and generates again within one call. Between
two generations it holds nothing; each begins with all that was before it. The ledger holds the first, the only one
whose prompt can be counted: what later ones grow beyond it shows in the gauge, as load of others does. The usage of
such a call sums up all its prompts and answers, so nothing is learned from it.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import msgspec

from kvguard.admission.footprint import Trait
from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import refuse_many_values_in
from kvguard.protocols.fields import Fields, is_filled, is_set, read_bool, read_fields, read_text, some_members
from kvguard.protocols.known_fields import read_known
from kvguard.protocols.request import CapRule, InferenceRequest
from kvguard.protocols.responses_errors import RESPONSES_ERRORS
from kvguard.protocols.responses_prompt import prompt_of
from kvguard.protocols.route import Route
from kvguard.protocols.sse import StreamFormat

PATH = "/v1/responses"
CAPS = CapRule(names=("max_output_tokens",), default_tokens=None)

# All of the schema that is not the prompt's and matters to the cache; `n` and `min_tokens` are not in it.
_KNOWN = (
    "model",
    "stream",
    "max_output_tokens",
    "ignore_eos",
    "stop",
    "stop_token_ids",
    "tools",
    "structured_outputs",
)
_PROMPT_FIELDS = ("input", "instructions", "previous_input_messages", "tools", "chat_template_kwargs", "reasoning")
_SERVER_RUN = frozenset({"web_search_preview", "code_interpreter", "container", "mcp"})

# Whatever a delta is of, it is one of a token. The last event repeats the whole answer, so that its first line may be
# long gone when its end has come; quotes inside texts are escaped, so the end cannot be one of a text.
STREAM: Final = StreamFormat(
    token=b".delta\ndata:",
    complete=re.compile(
        rb"(?:\nevent: ?response\.(?:completed|incomplete)\r?\ndata:[^\n]*"
        rb'|"type": ?"response\.(?:completed|incomplete)"\})\r?\n'
    ),
    failed=re.compile(rb'(?:\nevent: ?(?:error|response\.failed)|"type": ?"response\.failed"\})\r?\n'),
)


class _Typed(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw()


class _Text(msgspec.Struct):
    format: _Typed | None = None


class _Tool(msgspec.Struct):
    type: str = ""


_text = msgspec.json.Decoder(_Text)
_tools = msgspec.json.Decoder(list[_Tool])


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    if read_bool(fields, "background"):
        raise InvalidRequest("'background' is refused: the answer would outlive its reservation", param="background")
    refuse_many_values_in(fields, _PROMPT_FIELDS)
    request = read_known(body, fields, prompt_of(fields), CAPS, _KNOWN)
    return replace(
        request,
        truncate_to=_truncate_to(fields),
        traits=request.traits.union(_traits(fields)),
        runs_tools=_runs_tools(fields),
    )


ROUTE: Final = Route(path=PATH, parse=parse, errors=RESPONSES_ERRORS, stream=STREAM)


def _truncate_to(fields: Fields) -> int | None:
    """Prompts are cut to the context by `auto`, and by null."""
    if "truncation" not in fields:
        return None
    how = read_text(fields, "truncation") if is_set(fields, "truncation") else "auto"
    if how not in ("auto", "disabled"):
        raise InvalidRequest("'truncation' must be auto or disabled", param="truncation")
    return -1 if how == "auto" else None


def _traits(fields: Fields) -> Iterator[Trait]:
    if not is_set(fields, "text"):
        return
    asked = some_members(fields, "text", _text).format
    if asked is not None and bytes(asked.type) != b'"text"':
        yield Trait.STRUCTURED_OUTPUT


def _runs_tools(fields: Fields) -> bool:
    """Whether there is a tool that an engine with a tool server runs by itself."""
    if not is_filled(fields, "tools"):
        return False
    try:
        return any(tool.type in _SERVER_RUN for tool in _tools.decode(fields["tools"]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest("'tools' must be a list of objects with a type", param="tools") from None
