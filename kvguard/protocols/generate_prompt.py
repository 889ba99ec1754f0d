"""The prompt of POST /inference/v1/generate: `token_ids`, placeholders of media in `features` included.

Media in `content_parts` come on top of the ids; `media.of_content_parts` finds them.
"""

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, decode
from kvguard.protocols.openai_completions import ids_of
from kvguard.protocols.prompts import TokenPrompts
from kvguard.protocols.token_ids import flat_ids


def prompt_of(fields: Fields) -> TokenPrompts:
    """The number of ids. Raises InvalidRequest naming the field at fault."""
    plain = flat_ids(bytes(fields.get("token_ids", b"")))
    if plain is not None:
        return TokenPrompts((plain,))
    ids = decode(fields, "token_ids")
    if not isinstance(ids, list) or not ids:
        raise InvalidRequest("'token_ids' must be a non-empty list of token ids", param="token_ids")
    return ids_of(ids, "token_ids")
