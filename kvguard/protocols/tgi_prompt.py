"""The prompts of TGI's routes: `inputs`, or `messages`, or `prompt`.

Media come inside `inputs` as Markdown pictures; `protocols.media` finds those.
"""

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import object_list, refuse_many_values_in
from kvguard.protocols.fields import Fields, decode, is_set
from kvguard.protocols.openai_completions import MAX_PROMPTS
from kvguard.protocols.prompts import ChatPrompt, TextPrompts

# All that TGI's template sees; it has its own two texts around tools and grammars.
TEMPLATE_FIELDS = ("messages", "tools", "tool_choice", "tool_prompt", "guideline", "chat_template_kwargs")


PROMPT_FIELDS = ("inputs", "messages", "prompt")


def only_prompt_field(fields: Fields) -> str:
    """Which of the PROMPT_FIELDS tells what kind of request this is; the last one where none is there.

    Raises InvalidRequest for more than one: the server takes the next kind where a field of the first, be it one that
    is not read here, has the wrong type.
    """
    given = [name for name in PROMPT_FIELDS if is_set(fields, name)]
    if len(given) > 1:
        raise InvalidRequest(f"'{given[0]}' and '{given[1]}' cannot stand side by side", param=given[1])
    return given[0] if given else PROMPT_FIELDS[-1]


def native_prompt_of(fields: Fields) -> TextPrompts:
    """`/generate` and `/generate_stream`."""
    inputs = decode(fields, "inputs")
    if not isinstance(inputs, str):
        raise InvalidRequest("'inputs' must be a string", param="inputs")
    return TextPrompts((inputs,))


def chat_prompt_of(fields: Fields) -> ChatPrompt:
    """`/v1/chat/completions`."""
    refuse_many_values_in(fields, TEMPLATE_FIELDS)
    object_list(decode(fields, "messages"), "messages")
    return ChatPrompt({name: fields[name] for name in TEMPLATE_FIELDS if name in fields})


def completion_prompt_of(fields: Fields) -> TextPrompts:
    """`/v1/completions`: text only, one prompt or a list."""
    if is_set(fields, "suffix"):
        raise InvalidRequest("'suffix' is not supported", param="suffix")
    prompt = decode(fields, "prompt")
    given = prompt if isinstance(prompt, list) else [prompt]
    texts = tuple(text for text in given if isinstance(text, str))
    if not 1 <= len(given) <= MAX_PROMPTS or len(texts) < len(given):
        raise InvalidRequest(f"'prompt' must be a string or a list of 1 to {MAX_PROMPTS} strings", param="prompt")
    return TextPrompts(texts)
