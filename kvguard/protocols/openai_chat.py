"""POST /v1/chat/completions: `messages` that the model's chat template turns into one prompt."""

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import read_fields
from kvguard.protocols.request import CapRule, ChatPrompt, InferenceRequest, read_common

PATH = "/v1/chat/completions"
CAPS = CapRule(names=("max_completion_tokens", "max_tokens"), default_tokens=None)

# Everything the chat template may look at, which is everything a token count depends on.
TEMPLATE_FIELDS = (
    "messages",
    "tools",
    "documents",
    "reasoning_effort",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "kv_transfer_params",
    "mm_processor_kwargs",
)


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    if not bytes(fields.get("messages", b"")).lstrip().startswith(b"["):
        raise InvalidRequest("'messages' must be a list", param="messages")
    template = {name: fields[name] for name in TEMPLATE_FIELDS if name in fields}
    return read_common(body, fields, ChatPrompt(template), CAPS)
