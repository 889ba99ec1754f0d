"""The prompts of TGI's routes: `inputs`, or `messages`, or `prompt`, or Vertex `instances` of the first two.

Media come inside `inputs` as Markdown pictures; `protocols.media` finds those.
"""

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_form import object_list, raw
from kvguard.protocols.fields import Fields, decode, is_set, read_int
from kvguard.protocols.openai_completions import MAX_PROMPTS
from kvguard.protocols.prompts import ChatPrompt, PromptList, TextPrompts

# All that TGI's template sees; it has its own two texts around tools and grammars.
TEMPLATE_FIELDS = ("messages", "tools", "tool_choice", "tool_prompt", "guideline", "chat_template_kwargs")


def prompt_of(fields: Fields) -> TextPrompts | ChatPrompt:
    """`/`, `/invocations`, and every route whose form the body tells: native, then chat, then completion."""
    if is_set(fields, "inputs"):
        return native_prompt_of(fields)
    return chat_prompt_of(fields) if is_set(fields, "messages") else completion_prompt_of(fields)


def native_prompt_of(fields: Fields) -> TextPrompts:
    """`/generate` and `/generate_stream`."""
    inputs = decode(fields, "inputs")
    if not isinstance(inputs, str):
        raise InvalidRequest("'inputs' must be a string", param="inputs")
    return TextPrompts((inputs,))


def truncate_of(fields: Fields) -> int | None:
    """`parameters.truncate`: only so many tokens of the end of `inputs` are kept. None without one."""
    parameters = decode(fields, "parameters")
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise InvalidRequest("'parameters' must be an object", param="parameters")
    kept = read_int({"truncate": raw(parameters.get("truncate"))}, "truncate")
    if kept is not None and kept < 1:
        raise InvalidRequest("'truncate' must be at least 1", param="truncate")
    return kept


def chat_prompt_of(fields: Fields) -> ChatPrompt:
    """`/v1/chat/completions`."""
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


def vertex_prompt_of(fields: Fields) -> PromptList:
    """`/vertex`: one prompt per instance."""
    instances = object_list(decode(fields, "instances"), "instances")
    if len(instances) > MAX_PROMPTS:
        raise InvalidRequest(f"'instances' has more than {MAX_PROMPTS} entries", param="instances")
    encoded: list[Fields] = [{name: raw(value) for name, value in instance.items()} for instance in instances]
    return PromptList(tuple(_instance(instance) for instance in encoded))


def _instance(fields: Fields) -> TextPrompts | ChatPrompt:
    return native_prompt_of(fields) if is_set(fields, "inputs") else chat_prompt_of(fields)
