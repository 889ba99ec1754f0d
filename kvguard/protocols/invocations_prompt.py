"""The prompt of vLLM's POST /invocations: a chat or a completion body, told apart by shape.

The engine takes the first kind of request the body validates as, chat before completions. Whether a body with both
`messages` and `prompt` validates as chat depends on every field in it, so such a body is refused.
"""

from kvguard.errors import InvalidRequest
from kvguard.protocols import openai_chat, openai_completions
from kvguard.protocols.fields import Fields, is_set
from kvguard.protocols.prompts import Prompt


def prompt_of(fields: Fields) -> Prompt:
    """What the engine tokenises. Raises InvalidRequest naming the field at fault."""
    chat, completion = is_set(fields, "messages"), is_set(fields, "prompt") or is_set(fields, "prompt_embeds")
    if chat and completion:
        raise InvalidRequest("'messages' and 'prompt' cannot be used together here", param="prompt")
    return openai_chat.prompt_of(fields) if chat else openai_completions.prompt_of(fields)
