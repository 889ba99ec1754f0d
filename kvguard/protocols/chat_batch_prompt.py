"""The prompts of POST /v1/chat/completions/batch: `messages` is a list of conversations, each one sequence."""

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import IDS_FIELD, refuse_many_values_in, reused_ids
from kvguard.protocols.fields import Fields, entries, is_filled, opens
from kvguard.protocols.openai_chat import TEMPLATE_FIELDS, conversation
from kvguard.protocols.openai_completions import MAX_PROMPTS
from kvguard.protocols.prompts import PromptList


def prompt_of(fields: Fields) -> PromptList:
    """One chat prompt per conversation. Raises InvalidRequest naming the field at fault.

    Tools are not rendered here, and ids cannot replace the messages.
    """
    if reused_ids(fields) is not None:
        raise InvalidRequest(f"'{IDS_FIELD}' cannot serve several conversations", param=IDS_FIELD)
    shared = {name: value for name, value in fields.items() if name != "tools"}
    refuse_many_values_in(shared, TEMPLATE_FIELDS)
    conversations = entries(fields["messages"], "messages") if "messages" in fields else []
    if not 1 <= len(conversations) <= MAX_PROMPTS:
        raise InvalidRequest(f"'messages' must have 1 to {MAX_PROMPTS} conversations", param="messages")
    for messages in conversations:
        if not opens(messages, b"[") or not is_filled({"messages": messages}, "messages"):
            raise InvalidRequest("every conversation in 'messages' must be a non-empty list", param="messages")
    return PromptList(tuple(conversation({**shared, "messages": messages}) for messages in conversations))
