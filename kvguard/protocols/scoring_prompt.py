"""The prompts of POST /generative_scoring: one `query` with each of `items`, as text or as token ids."""

from kvguard.errors import InvalidRequest
from kvguard.protocols.composite import SharedPrompts
from kvguard.protocols.fields import Fields, decode
from kvguard.protocols.openai_completions import MAX_PROMPTS, ids_of, prompts_of
from kvguard.protocols.request import TextPrompts, TokenPrompts


def prompt_of(fields: Fields) -> SharedPrompts:
    """Query and items. Raises InvalidRequest naming the field at fault.

    The engine cuts each prompt silently to its context less one token; `item_first` changes no length.
    """
    return SharedPrompts(query=_query(decode(fields, "query")), items=_items(decode(fields, "items")))


def _query(value: object) -> TextPrompts | TokenPrompts:
    if isinstance(value, str):
        return TextPrompts((value,))
    if isinstance(value, list):
        return ids_of(value, "query")
    raise InvalidRequest("'query' must be a string or a list of token ids", param="query")


def _items(value: object) -> TextPrompts | TokenPrompts:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_PROMPTS:
        raise InvalidRequest(f"'items' must be a list of 1 to {MAX_PROMPTS} entries", param="items")
    return prompts_of(value, "items")
