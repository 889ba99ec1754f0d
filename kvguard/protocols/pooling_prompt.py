"""The prompts of the routes of pooling models: `input` or `messages`, Cohere's inputs, pairs of query and document.

Follows vLLM 0.32 `entrypoints/pooling`. Where it chooses by which of its models a body validates as, a body that could
be more than one of them is refused.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.chat_batch_prompt import conversations_of, refuse_large_share
from kvguard.protocols.chat_form import raw, refuse_many_values_in
from kvguard.protocols.fields import Fields, built, entries, is_set, members, opens, refuse_many_values
from kvguard.protocols.openai_completions import text_or_ids
from kvguard.protocols.prompts import ChatPrompt, PairedPrompts, PromptList, Single, TextPrompts

MAX_INPUTS: Final = 2048  # OpenAI's own limit; vLLM has none

TEMPLATE_FIELDS = (
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "mm_processor_kwargs",
)
# Where `/tokenize` has another default.
_DEFAULTS = {"add_generation_prompt": msgspec.Raw(b"false")}
_PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
_PRINTED = ("instruction", "chat_template_kwargs")
_COHERE = ("texts", "images", "inputs")
_CONVERSATION = re.compile(rb"\[\s*\{")
_CONVERSATIONS = re.compile(rb"\[\s*\[\s*\{")
_NULL = msgspec.Raw(b"null")


def input_prompt_of(fields: Fields) -> Single | PromptList:
    """`/pooling` and `/classify`: `input`, text or ids, or the conversation in `messages`."""
    if "data" in fields:
        raise InvalidRequest("'data' is for a plugin, whose prompts cannot be counted", param="data")
    if not _is_chat(fields):
        return text_or_ids(fields.get("input", _NULL), "input", most=MAX_INPUTS, empty=True)
    return _conversations(fields, "messages", [fields["messages"]]).prompts[0]


def embedding_prompt_of(fields: Fields) -> Single | PromptList:
    """`/v1/embeddings`: as above, and either may hold a conversation or several."""
    name = "messages" if _is_chat(fields) else "input"
    value = fields.get(name, _NULL)
    if _CONVERSATIONS.match(memoryview(value)):
        return _conversations(fields, name, conversations_of(value, name, most=MAX_INPUTS))
    if name == "messages" or _CONVERSATION.match(memoryview(value)):
        return _conversations(fields, name, [value]).prompts[0]
    return text_or_ids(value, name, most=MAX_INPUTS, empty=True)


def cohere_prompt_of(fields: Fields) -> TextPrompts | PromptList:
    """`/v2/embed`: exactly one of `texts`, `images` and `inputs`; the last two become conversations."""
    given = [name for name in _COHERE if is_set(fields, name)]
    if len(given) != 1:
        raise InvalidRequest("exactly one of 'texts', 'images' and 'inputs' must be given", param="texts")
    [name] = given
    refuse_many_values(fields[name], name)
    parts = entries(fields[name], name)
    if not 1 <= len(parts) <= MAX_INPUTS:
        raise InvalidRequest(f"'{name}' must be a list of 1 to {MAX_INPUTS} entries", param=name)
    if name == "texts":
        return _texts(parts, name)
    contents = [_picture(part) if name == "images" else _content(part, name) for part in parts]
    return PromptList(tuple(_spoken(content) for content in contents))


def score_prompt_of(fields: Fields) -> PairedPrompts:
    """`/score`: the pair goes by four pairs of names."""
    given = [pair for pair in _PAIRS if all(is_set(fields, name) for name in pair)]
    if len(given) != 1:
        pairs = "; ".join(f"'{first}' and '{second}'" for first, second in _PAIRS)
        raise InvalidRequest(f"exactly one of these pairs must be given: {pairs}", param="queries")
    return _paired(fields, *given[0])


def rerank_prompt_of(fields: Fields) -> PairedPrompts:
    """`/rerank`: one query."""
    query = fields.get("query", _NULL)
    if not opens(query, b'"') and not opens(query, b"{"):
        raise InvalidRequest("'query' must be a string or an object with 'content'", param="query")
    return _paired(fields, "query", "documents")


def _is_chat(fields: Fields) -> bool:
    chat = is_set(fields, "messages")
    if chat and is_set(fields, "input"):
        raise InvalidRequest("'messages' and 'input' cannot be used together", param="input")
    return chat


def _conversations(fields: Fields, name: str, conversations: Sequence[msgspec.Raw]) -> PromptList:
    refuse_many_values_in(fields, (name, *TEMPLATE_FIELDS))
    if not all(opens(messages, b"[") for messages in conversations):
        raise InvalidRequest(f"'{name}' must be a list", param=name)
    shared = {**_DEFAULTS, **{key: fields[key] for key in TEMPLATE_FIELDS if key in fields}}
    refuse_large_share(shared, len(conversations))
    return PromptList(tuple(ChatPrompt({**shared, "messages": messages}) for messages in conversations))


def _paired(fields: Fields, first: str, second: str) -> PairedPrompts:
    queries, documents = _scored(fields, first), _scored(fields, second)
    if len(queries) not in (1, len(documents)):
        raise InvalidRequest(f"'{first}' must be one, or as many as '{second}'", param=first)
    return PairedPrompts(_listed(queries, first, _instruction(fields, len(queries))), _listed(documents, second))


def _instruction(fields: Fields, queries: int) -> str:
    """What the client has a score template print beside each query."""
    given = {name: fields[name] for name in _PRINTED if is_set(fields, name)}
    refuse_many_values_in(given, _PRINTED)
    refuse_large_share(given, queries)
    return "".join(f"{bytes(value).decode(errors='replace')}\n" for value in given.values())


def _scored(fields: Fields, name: str) -> list[msgspec.Raw]:
    """What is scored in one of the two fields, one or a list."""
    value = fields.get(name, _NULL)
    if not any(opens(value, first) for first in (b'"', b"{", b"[")):
        raise InvalidRequest(f"'{name}' must be a string, an object with 'content' or a list of them", param=name)
    refuse_many_values(value, name)
    parts = entries(value, name) if opens(value, b"[") else [value]
    if not 1 <= len(parts) <= MAX_INPUTS:
        raise InvalidRequest(f"'{name}' must be one or a list of 1 to {MAX_INPUTS} entries", param=name)
    return parts


def _listed(parts: Sequence[msgspec.Raw], name: str, before: str = "") -> PromptList:
    """The prompts of what is scored, each after the text `before`."""
    if all(opens(part, b'"') for part in parts):
        return PromptList((_texts(parts, name, before),))
    return PromptList(
        tuple(
            _texts([part], name, before) if opens(part, b'"') else _spoken(_content(part, name), before)
            for part in parts
        )
    )


def _texts(parts: Sequence[msgspec.Raw], name: str, before: str = "") -> TextPrompts:
    texts = [built(part, name) for part in parts if opens(part, b'"')]
    strings = tuple(text for text in texts if isinstance(text, str))
    if len(strings) < len(parts):
        raise InvalidRequest(f"'{name}' must be strings", param=name)
    return TextPrompts(tuple(f"{before}{text}" for text in strings) if before else strings)


def _picture(part: msgspec.Raw) -> object:
    if not opens(part, b'"'):
        raise InvalidRequest("'images' must be strings", param="images")
    return [{"type": "image_url", "image_url": {"url": part}}]


def _content(part: msgspec.Raw, name: str) -> object:
    """The parts in an object with `content`."""
    content = members(part, name).get("content", _NULL)
    if not opens(content, b"["):
        raise InvalidRequest(f"every object in '{name}' must have a list 'content'", param=name)
    return content


def _spoken(content: object, before: str = "") -> ChatPrompt:
    """A message with this content. For a pair the template's own tokens come on top: too many, never too few."""
    messages = [{"role": "user", "content": content}]
    if before:
        messages.insert(0, {"role": "system", "content": before})
    return ChatPrompt({"messages": raw(messages), **_DEFAULTS})
