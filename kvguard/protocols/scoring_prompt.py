"""The prompts of POST /generative_scoring: one `query` with each of `items`, as text or as token ids."""

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, decode
from kvguard.protocols.openai_completions import MAX_PROMPTS, ids_of, prompts_of
from kvguard.protocols.prompts import SharedPrompts, TextPrompts, TokenPrompts
from kvguard.protocols.token_ids import flat_ids, id_lists


def prompt_of(fields: Fields) -> SharedPrompts:
    """Query and items. Raises InvalidRequest naming the field at fault.

    The engine cuts each prompt silently to its context less one token; `item_first` changes no length.
    """
    return SharedPrompts(query=_query(fields), items=_items(fields))


def _query(fields: Fields) -> TextPrompts | TokenPrompts:
    plain = flat_ids(bytes(fields.get("query", b"")))
    if plain is not None:
        return TokenPrompts((plain,))
    value = decode(fields, "query")
    if isinstance(value, str):
        return TextPrompts((value,))
    if isinstance(value, list):
        return ids_of(value, "query")
    raise InvalidRequest("'query' must be a string or a list of token ids", param="query")


def _items(fields: Fields) -> TextPrompts | TokenPrompts:
    plain = id_lists(bytes(fields.get("items", b"")), most=MAX_PROMPTS)
    if plain is not None:
        return TokenPrompts(plain)
    value = decode(fields, "items")
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_PROMPTS:
        raise InvalidRequest(f"'items' must be a list of 1 to {MAX_PROMPTS} entries", param="items")
    return prompts_of(value, "items")
