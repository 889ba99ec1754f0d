"""The fields of a chat request -> the prompt text vLLM tokenises.

Follows vLLM 0.32's chat route: its field defaults, the order in which `chat_template_kwargs` and fields win, and its
choice of template. `/tokenize` differs in a few of them and is not what is followed.
"""

import json
from dataclasses import dataclass
from typing import Any

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, is_set, read_bool
from kvguard.tokenization.conversation import MAX_ITEMS, read_messages, read_tools
from kvguard.tokenization.counter import CountFailed
from kvguard.tokenization.template import ChatTemplate

# Names vLLM or transformers take for themselves: a client that sets one gets an error or another prompt.
_RESERVED = frozenset(
    {
        "chat_template",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "truncation",
    }
)


@dataclass(frozen=True, slots=True)
class ChatTemplates:
    """The template for conversations without tools and the one for those with; None where there is none."""

    plain: ChatTemplate | None
    with_tools: ChatTemplate | None

    def render(self, chat: Fields) -> str:
        """The prompt text of a conversation. Raises CountFailed."""
        try:
            return self._render(chat)
        except CountFailed:
            raise
        except Exception as error:  # a template is a foreign program: whatever it raises is a failed count
            raise CountFailed(f"chat template: {type(error).__name__}") from error

    def _render(self, chat: Fields) -> str:
        _refuse_replaced_prompts(chat)
        variables = _variables(chat)
        template = self.plain if variables["tools"] is None else self.with_tools
        if template is None:
            raise CountFailed("the tokenizer directory has no chat template")
        variables["add_generation_prompt"] = _flag(chat, "add_generation_prompt", default=True)
        continued = _flag(chat, "continue_final_message", default=False)
        if continued and variables["add_generation_prompt"]:
            raise CountFailed("a continued message takes no generation prompt")
        conversation = read_messages(_decoded(chat, "messages"), parts=template.parts)
        return template.render(conversation, variables, continued=continued)


def special_tokens_asked(chat: Fields) -> bool:
    """Whether the tokenizer shall add its own special tokens to those the template prints."""
    return _flag(chat, "add_special_tokens", default=False)


def _refuse_replaced_prompts(chat: Fields) -> None:
    transfer = _decoded(chat, "kv_transfer_params")
    replaced = isinstance(transfer, dict) and transfer.get("prompt_token_ids") is not None
    if replaced or is_set(chat, "chat_template"):
        raise CountFailed("the request replaces its own prompt")


def _variables(chat: Fields) -> dict[str, Any]:
    """What the template is given beside the messages: kwargs over tools, the other fields over kwargs."""
    given = _decoded(chat, "chat_template_kwargs") or {}
    if not isinstance(given, dict):
        raise CountFailed("chat_template_kwargs are not an object")
    fields = {"documents": _decoded(chat, "documents"), "reasoning_effort": _decoded(chat, "reasoning_effort")}
    if fields["reasoning_effort"] is not None and "enable_thinking" not in given:
        fields["enable_thinking"] = fields["reasoning_effort"] != "none"
    fields = {name: value for name, value in fields.items() if not _is_unset(value)}
    kwargs = {name: value for name, value in (given | fields).items() if not _is_unset(value)}
    if not _RESERVED.isdisjoint(kwargs):
        raise CountFailed("chat_template_kwargs set a reserved name")
    variables = {"documents": None, "tools": read_tools(_decoded(chat, "tools"))} | kwargs
    for name in ("documents", "tools"):
        _check_dicts(variables[name])
    return variables


def _is_unset(value: object) -> bool:
    """A value vLLM drops when it merges keyword arguments."""
    return value is None or value == "auto"


def _check_dicts(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, list) or len(value) > MAX_ITEMS or not all(isinstance(item, dict) for item in value):
        raise CountFailed("documents and tools are lists of objects, not too many to count")


def _decoded(chat: Fields, name: str) -> Any:
    """A field as Python's own decoder reads it, which vLLM uses; it differs from msgspec in long numbers and NaN."""
    return json.loads(bytes(chat[name])) if name in chat else None


def _flag(chat: Fields, name: str, *, default: bool) -> bool:
    try:
        return read_bool(chat, name) if is_set(chat, name) else default
    except InvalidRequest as error:
        raise CountFailed(str(error)) from error
