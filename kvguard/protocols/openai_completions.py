"""POST /v1/completions: `prompt` as a string, strings, token ids or lists of token ids."""

import re
from typing import Final

import msgspec

from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import (
    Fields,
    built,
    decode,
    entries,
    is_filled,
    is_set,
    opens,
    read_bool,
    read_fields,
    refuse_many_values,
)
from kvguard.protocols.prompts import TextPrompts, TokenPrompts
from kvguard.protocols.request import CapRule, InferenceRequest, read_common, streamed_openly
from kvguard.protocols.route import Route
from kvguard.protocols.token_ids import flat_ids, id_lists

PATH = "/v1/completions"
CAPS = CapRule(names=("max_tokens",), default_tokens=16)
MAX_PROMPTS = 1024  # vLLM's own limit on a list of prompts

_NULL = msgspec.Raw(b"null")
MAX_ID_CHARACTERS = 16  # of an id written as text
_ID = re.compile(r"\s*+\+?[0-9]++(?:_[0-9]++)*+(?:\.0++)?\s*+")
MAX_SUFFIX_CHARACTERS = 16 * 1024 * 1024  # over all prompts but one, each of which gets the suffix
# Stands for the two or three special tokens of a fill-in-the-middle prompt; never fewer tokens than those.
_MIDDLE = " <suffix> <prefix> "


def parse(body: bytes) -> InferenceRequest:
    """Read a request. Raises InvalidRequest naming the field at fault."""
    fields = read_fields(body)
    return streamed_openly(read_common(body, fields, prompt_of(fields), CAPS))


ROUTE: Final = Route(path=PATH, parse=parse)


def prompt_of(fields: Fields) -> TextPrompts | TokenPrompts:
    """What the engine tokenises. Raises InvalidRequest naming the field at fault.

    `kv_transfer_params` replaces nothing here, and `echo` adds nothing.
    """
    _refuse_embeds(fields)
    echo = read_bool(fields, "echo")
    prompt = text_or_ids(fields.get("prompt", _NULL), "prompt", most=MAX_PROMPTS)
    return _with_suffix(fields, prompt, echo=echo) if is_set(fields, "suffix") else prompt


def text_or_ids(raw: msgspec.Raw, name: str, *, most: int, empty: bool = False) -> TextPrompts | TokenPrompts:
    """The prompts in the field `name`: a string, which may be `empty`, token ids, or at most so many of either.

    Raises InvalidRequest naming the field at fault.
    """
    plain = _plain_ids(raw, most)
    if plain is not None:
        return plain
    refuse_many_values(raw, name)
    _refuse_too_many(raw, name, most)
    value = built(raw, name)
    return TextPrompts(("",)) if empty and value == "" else _prompt(value, name)


def _plain_ids(raw: msgspec.Raw, most: int) -> TokenPrompts | None:
    if not opens(raw, b"["):
        return None
    flat = flat_ids(bytes(raw))
    lengths = id_lists(bytes(raw), most=most) if flat is None else (flat,)
    return None if lengths is None else TokenPrompts(lengths)


def _refuse_embeds(fields: Fields) -> None:
    """Refuse tensors as the engine does by default; the payload of a sparse one says nothing about its rows."""
    embeds = bytes(fields.get("prompt_embeds", b"null"))
    if is_set(fields, "prompt_embeds") and (not embeds.startswith(b"[") or is_filled(fields, "prompt_embeds")):
        raise InvalidRequest("'prompt_embeds' cannot be counted", param="prompt_embeds")


def _refuse_too_many(raw: msgspec.Raw, name: str, most: int) -> None:
    """Refuse a long list of prompts before building it."""
    parts = entries(raw, name)
    if len(parts) > most and bytes(parts[0])[:1] in (b"[", b'"'):
        raise InvalidRequest(f"'{name}' has more than {most} entries", param=name)


def _prompt(value: object, name: str) -> TextPrompts | TokenPrompts:
    if isinstance(value, str) and value:
        return TextPrompts((value,))
    if isinstance(value, list) and value:
        # An empty string may be a prompt: the tokenizer may add a token of its own to it.
        is_ids = not isinstance(value[0], list) and not all(isinstance(one, str) for one in value)
        prompt = ids_of(value, name) if is_ids else prompts_of(value, name)
        if isinstance(prompt, TextPrompts) or all(prompt.lengths):
            return prompt
    raise InvalidRequest(f"'{name}' must be a non-empty string or list", param=name)


def prompts_of(values: list[object], name: str) -> TextPrompts | TokenPrompts:
    """Strings only, or lists of token ids only."""
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) == len(values):
        return TextPrompts(texts)
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) < len(values):
        raise InvalidRequest(f"'{name}' must be strings only or lists of token ids only", param=name)
    return TokenPrompts(tuple(ids_of(value, name).lengths[0] for value in lists))


def ids_of(values: list[object], name: str) -> TokenPrompts:
    """One prompt of token ids; like the engine's models this takes 5.0, true and, among others, "5" for one.

    A text above MAX_ID_CHARACTERS is none: all of them together are looked at character by character.
    """
    if not all(map(_is_id, values)):
        raise InvalidRequest(f"'{name}' must be strings only or lists of token ids only", param=name)
    return TokenPrompts((len(values),))


def _is_id(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_ID_CHARACTERS and _ID.fullmatch(value) is not None
    return isinstance(value, int | float) and value >= 0 and value == int(value)


def _with_suffix(fields: Fields, prompt: TextPrompts | TokenPrompts, *, echo: bool) -> TextPrompts:
    """Prefix and suffix in one prompt, as models for fill-in-the-middle get them; others answer 400."""
    suffix = decode(fields, "suffix")
    if not isinstance(suffix, str) or isinstance(prompt, TokenPrompts):
        raise InvalidRequest("'suffix' must be a string and needs a prompt of text", param="suffix")
    if echo or is_set(fields, "truncate_prompt_tokens"):
        raise InvalidRequest("'suffix' cannot be used with 'echo' or 'truncate_prompt_tokens'", param="suffix")
    if (len(prompt.texts) - 1) * len(suffix) > MAX_SUFFIX_CHARACTERS:
        raise InvalidRequest("'suffix' is too long for so many prompts", param="suffix")
    return TextPrompts(tuple(f"{text}{_MIDDLE}{suffix}" for text in prompt.texts))
