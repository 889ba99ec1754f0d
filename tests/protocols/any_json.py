"""Any JSON object with the fields named, for the property that readers only ever raise InvalidRequest."""

import json

from hypothesis import strategies as st

from kvguard.protocols.fields import Fields, read_fields

_WORDS = st.sampled_from(
    [
        *(
            "type",
            "text",
            "role",
            "user",
            "assistant",
            "system",
            "tool",
            "content",
            "source",
            "image",
            "image_url",
            "url",
        ),
        *(
            "tool_use",
            "tool_result",
            "thinking",
            "tool_addition",
            "tool_removal",
            "name",
            "definition",
            "input",
            "input_schema",
        ),
        *("message", "reasoning", "summary", "function_call", "function_call_output", "output", "call_id", "function"),
        *("namespace", "custom", "tools", "status", "incomplete", "prompt_token_ids", "uuid", "data", "input_audio"),
        "data:image/png;base64,iVBORw0KGgo",
    ]
)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _WORDS
    | st.text(max_size=3)
)
VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_WORDS, inner, max_size=5),
    max_leaves=25,
)


def objects(*names: str) -> st.SearchStrategy[Fields]:
    """Objects with some of these fields, whatever is in them."""
    return st.dictionaries(st.sampled_from(names), VALUES).map(lambda value: fields_of(value))


def fields_of(value: object) -> Fields:
    """The top-level fields of a value as a client would write it."""
    return read_fields(json.dumps(value).encode())
