"""The prompt of POST /inference/v1/generate: `token_ids`, placeholders of media in `features` included.

Media in `content_parts` come on top of the ids.
"""

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import Fields, decode, refuse_many_values
from kvguard.protocols.media import of_content_parts
from kvguard.protocols.openai_completions import ids_of
from kvguard.protocols.prompts import TokenPrompts
from kvguard.protocols.token_ids import flat_ids

PARTS = "content_parts"


def prompt_of(fields: Fields) -> TokenPrompts:
    """The number of ids, and the media beside them. Raises InvalidRequest naming the field at fault."""
    parts = fields.get(PARTS, msgspec.Raw(b"null"))
    refuse_many_values(parts, PARTS)
    return TokenPrompts((_length(fields),), of_content_parts(parts))


def _length(fields: Fields) -> int:
    plain = flat_ids(bytes(fields.get("token_ids", b"")))
    if plain is not None:
        return plain
    ids = decode(fields, "token_ids")
    if not isinstance(ids, list) or not ids:
        raise InvalidRequest("'token_ids' must be a non-empty list of token ids", param="token_ids")
    [length] = ids_of(ids, "token_ids").lengths
    return length
