"""The prompts of POST /v1/chat/completions/batch: `messages` is a list of conversations, each one sequence."""

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import IDS_FIELD, refuse_many_values_in, reused_ids, with_template_variables
from kvguard.protocols.fields import Fields, entries, is_filled, opens
from kvguard.protocols.openai_chat import TEMPLATE_FIELDS, with_reasoning
from kvguard.protocols.openai_completions import MAX_PROMPTS
from kvguard.protocols.prompts import ChatPrompt, PromptList

MAX_SHARED_BYTES = 16 * 1024 * 1024  # over all conversations but one, each of which gets the fields they share


def prompt_of(fields: Fields) -> PromptList:
    """One chat prompt per conversation. Raises InvalidRequest naming the field at fault.

    Tools are not rendered here, and ids cannot replace the messages.
    """
    if reused_ids(fields) is not None:
        raise InvalidRequest(f"'{IDS_FIELD}' cannot serve several conversations", param=IDS_FIELD)
    names = [name for name in TEMPLATE_FIELDS if name != "tools"]
    refuse_many_values_in(fields, names)
    shared = with_template_variables({name: fields[name] for name in names if name in fields and name != "messages"})
    conversations = conversations_of(fields.get("messages", msgspec.Raw(b"null")), "messages", most=MAX_PROMPTS)
    refuse_large_share(shared, len(conversations))
    return PromptList(tuple(ChatPrompt({**shared, "messages": with_reasoning(messages)}) for messages in conversations))


def conversations_of(raw: msgspec.Raw, name: str, *, most: int) -> list[msgspec.Raw]:
    """The conversations in the field `name`, unread. Raises InvalidRequest unless they are 1 to `most` filled lists."""
    conversations = entries(raw, name)
    if not 1 <= len(conversations) <= most:
        raise InvalidRequest(f"'{name}' must have 1 to {most} conversations", param=name)
    for messages in conversations:
        if not opens(messages, b"[") or not is_filled({name: messages}, name):
            raise InvalidRequest(f"every conversation in '{name}' must be a non-empty list", param=name)
    return conversations


def refuse_large_share(shared: Fields, conversations: int) -> None:
    """Raise InvalidRequest when what every conversation gets is too much for so many of them."""
    size = sum(len(memoryview(value)) for value in shared.values())
    if (conversations - 1) * size > MAX_SHARED_BYTES:
        raise InvalidRequest("the template's fields are too large for so many conversations")
