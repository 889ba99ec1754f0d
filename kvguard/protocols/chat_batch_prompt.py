"""The prompts of POST /v1/chat/completions/batch: `messages` is a list of conversations, each one sequence."""

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import IDS_FIELD, reused_ids
from kvguard.protocols.composite import PromptList
from kvguard.protocols.fields import Fields
from kvguard.protocols.openai_chat import conversation
from kvguard.protocols.openai_completions import MAX_PROMPTS

_conversations = msgspec.json.Decoder(list[msgspec.Raw])


def prompt_of(fields: Fields) -> PromptList:
    """One chat prompt per conversation. Raises InvalidRequest naming the field at fault.

    Tools are not rendered here, and ids cannot replace the messages.
    """
    if reused_ids(fields) is not None:
        raise InvalidRequest(f"'{IDS_FIELD}' cannot serve several conversations", param=IDS_FIELD)
    shared = {name: value for name, value in fields.items() if name != "tools"}
    try:
        conversations = _conversations.decode(fields.get("messages", b"null"))
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidRequest("'messages' must be a list of conversations", param="messages") from None
    if not 1 <= len(conversations) <= MAX_PROMPTS:
        raise InvalidRequest(f"'messages' must have 1 to {MAX_PROMPTS} conversations", param="messages")
    for messages in conversations:
        if not bytes(messages).startswith(b"[") or bytes(messages)[1:-1].strip() == b"":
            raise InvalidRequest("every conversation in 'messages' must be a non-empty list", param="messages")
    return PromptList(tuple(conversation({**shared, "messages": messages}) for messages in conversations))
