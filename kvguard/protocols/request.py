"""An inference request, as any wire format yields it: what the KV cache needs to know, and how to write it back."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.admission.population import Population
from kvguard.errors import InvalidRequest
from kvguard.protocols.fields import (
    Fields,
    is_filled,
    is_set,
    members,
    opens,
    read_bool,
    read_int,
    read_text,
    some_members,
    write_fields,
)
from kvguard.protocols.media import MAX_PARTS, apart
from kvguard.protocols.prompt_lengths import cut, longest_prompt, with_slack
from kvguard.protocols.prompts import ChatPrompt, OpenEndedPrompt, PairedPrompts, Prompt, PromptList

MAX_COPIES = 16384  # vLLM's own limit on n

STREAM_OPTIONS = "stream_options"
INCLUDE_USAGE = "include_usage"
IN_EVERY_CHUNK = "continuous_usage_stats"  # has an effect only beside the former

_NOTHING = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRule:
    """Where a route keeps its output cap: field names, strongest first, and the engine's default without one.

    `default_tokens` None means the rest of the context. Without names there is nothing to say about it.
    """

    names: tuple[str, ...]
    default_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """One parsed request. `requested_cap` is the client's own, None when it named none; `stops` says that it names stop
    sequences, `route` the label of the route it came by, `model` the name if it is one as text.

    `params` are the fields that say how to generate: those of the body, or those of its member `inside`. A stream that
    `hides_usage` tells no token counts, though it would if it were asked to. One that `runs_tools` may make the engine
    generate several times within the call, of which its usage is the sum. One that is `padded` has prompts as long as
    the context; `around_tokens` are at most what the engine puts around each prompt.
    """

    body: bytes
    fields: Fields
    params: Fields
    inside: str | None = None
    caps: CapRule
    prompt: Prompt
    stream: bool
    copies: int
    beams: bool
    requested_cap: int | None
    min_tokens: int
    truncate_to: int | None
    fixed_length: bool
    traits: frozenset[Trait]
    special_tokens: bool = True
    stops: bool = False
    hides_usage: bool = False
    runs_tools: bool = False
    padded: bool = False
    around_tokens: int = 0
    route: str = ""
    model: str | None = None

    @property
    def model_field(self) -> Fields:
        """The `model` field as the client sent it, or nothing."""
        return {"model": self.fields["model"]} if "model" in self.fields else {}

    @property
    def names_whole_prompt(self) -> bool:
        """Whether the prompt here is all that the usage of its answer will be of."""
        return not self.runs_tools and not isinstance(self.prompt, OpenEndedPrompt)

    @property
    def special_tokens_field(self) -> Fields:
        """The `add_special_tokens` of a completion when it is switched off, or nothing: it is on by default."""
        return {} if self.special_tokens else {"add_special_tokens": msgspec.Raw(b"false")}

    def demand(
        self,
        prompt_tokens: tuple[int, ...],
        *,
        context_tokens: int | None,
        assumed_output_tokens: int,
        slack: tuple[int, ...] = (),
        estimated: bool = False,
    ) -> Demand:
        """What the engine will be asked to hold, caps and cuts resolved the way the engine resolves them.

        `context_tokens` is the model's limit, None when unknown; `assumed_output_tokens` stands for a cap the client
        left open. `slack` is by how many each count may be too low: headroom for blocks, which says nothing about the
        room for an answer. History that only the engine has may fill the whole context.
        """
        open_ended = self.padded or isinstance(self.prompt, OpenEndedPrompt)
        if open_ended:
            slack = (context_tokens or 0,) * len(prompt_tokens)
        elif self.around_tokens:
            slack = tuple(more + self.around_tokens for more in slack or (0,) * len(prompt_tokens))
        longest = longest_prompt(self.truncate_to, context_tokens, generates=self.caps.default_tokens != 0)
        counted = cut(prompt_tokens, longest)
        prompts = cut(with_slack(prompt_tokens, slack, context_tokens), longest) if slack else counted
        wanted = self.caps.default_tokens if self.requested_cap is None else self.requested_cap
        room = None if context_tokens is None else max(context_tokens - min(counted, default=0), 1)
        cap = min((limit for limit in (wanted, room) if limit is not None), default=None)
        length = cap if self.fixed_length else wanted
        expected = max(assumed_output_tokens if length is None else length, self.min_tokens)
        return Demand(
            prompts=prompts,
            copies=self.copies,
            output_cap=cap,
            asked_cap=cap,
            expected_output=expected if cap is None else min(expected, cap),
            min_tokens=self.min_tokens,
            beams=self.beams,
            fixed_length=self.fixed_length or (cap is not None and self.min_tokens >= cap),
            streamed=self.stream and not self.beams,
            estimated=estimated or open_ended or self.around_tokens > 0,
            slack_tokens=sum(prompts) - sum(counted),
            traits=self.traits,
            population=Population(route=self.route, stops=self.stops),
        )


def read_common(
    body: bytes, fields: Fields, prompt: Prompt, caps: CapRule, *, inside: str | None = None, copied: bool = True
) -> InferenceRequest:
    """The fields that routes share, read from the body or from its member `inside`; `n` only where it is `copied`.

    Raises InvalidRequest naming the field at fault.
    """
    params = fields if inside is None else members(fields.get(inside, _NOTHING), inside)
    copies = read_int(params, "n") if copied else 1
    copies = 1 if copies is None else copies
    if not 1 <= copies <= MAX_COPIES:
        raise InvalidRequest(f"'n' must be between 1 and {MAX_COPIES}", param="n")
    min_tokens = read_int(params, "min_tokens") or 0
    special = "add_special_tokens" not in fields or read_bool(fields, "add_special_tokens")
    return InferenceRequest(
        body=body,
        fields=fields,
        params=params,
        inside=inside,
        caps=caps,
        prompt=_with_media_apart(prompt),
        stream=read_bool(fields, "stream"),
        copies=copies,
        beams=copied and read_bool(params, "use_beam_search") and copies > 1,
        requested_cap=_requested_cap(params, caps),
        min_tokens=max(min_tokens, 0),
        truncate_to=read_int(fields, "truncate_prompt_tokens"),
        special_tokens=special,
        fixed_length=read_bool(params, "ignore_eos"),
        traits=_traits(params),
        stops=is_filled(params, "stop") or is_filled(params, "stop_token_ids"),
        model=read_text(fields, "model"),
    )


def _with_media_apart(prompt: Prompt) -> Prompt:
    """The prompt with the parts of its conversations that are not text beside them."""
    if isinstance(prompt, ChatPrompt):
        return ChatPrompt(*apart(prompt.fields))
    if isinstance(prompt, OpenEndedPrompt):
        return OpenEndedPrompt(ChatPrompt(*apart(prompt.known.fields)))
    if isinstance(prompt, PromptList):
        return _list_with_media_apart(prompt)
    if isinstance(prompt, PairedPrompts):
        return PairedPrompts(_list_with_media_apart(prompt.queries), _list_with_media_apart(prompt.documents))
    return prompt


def _list_with_media_apart(prompt: PromptList) -> PromptList:
    parts = tuple(ChatPrompt(*apart(p.fields)) if isinstance(p, ChatPrompt) else p for p in prompt.prompts)
    if sum(len(part.media) for part in parts if isinstance(part, ChatPrompt)) > MAX_PARTS:
        raise InvalidRequest(f"the body has more than {MAX_PARTS} parts that are not text")
    return PromptList(parts)


def _requested_cap(fields: Fields, caps: CapRule) -> int | None:
    for name, cap in [(name, read_int(fields, name)) for name in caps.names]:
        if cap is None:
            continue
        if cap < 1 and not (cap == 0 and read_bool(fields, "echo")):
            raise InvalidRequest(f"'{name}' must be at least 1", param=name)
        return max(cap, 1)
    return None


def streamed_openly(request: InferenceRequest) -> InferenceRequest:
    """The request of a route whose streams name their usage if `stream_options` asks for it, marked if it does not.

    Raises InvalidRequest when it asks by no truth value.
    """
    options = members(request.fields.get(STREAM_OPTIONS, _NOTHING), STREAM_OPTIONS)
    read_bool(options, IN_EVERY_CHUNK)
    return replace(request, hides_usage=request.stream and not read_bool(options, INCLUDE_USAGE))


def _traits(fields: Fields) -> frozenset[Trait]:
    traits = set()
    if is_filled(fields, "tools") or is_filled(fields, "functions"):
        traits.add(Trait.TOOLS)
    if _asks_for_format(fields) or any(is_set(fields, name) for name in _STRUCTURED):
        traits.add(Trait.STRUCTURED_OUTPUT)
    return frozenset(traits)


_STRUCTURED = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)


def _asks_for_format(fields: Fields) -> bool:
    """Whether `response_format` asks for anything but the default, plain text."""
    if not is_set(fields, "response_format"):
        return False
    if not opens(fields["response_format"], b"{"):
        return True
    return bytes(some_members(fields, "response_format", _format).type) != b'"text"'


class _Format(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw()


_format = msgspec.json.Decoder(_Format)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A body to forward and what was changed in it, e.g. `("max_tokens=1024->512", "n=4->1")`.

    Where it `asks_usage`, the client did not, and must not see it.
    """

    body: bytes
    changes: tuple[str, ...]
    asks_usage: bool = False


def rewrite(request: InferenceRequest, degradation: Degradation, *, ask_usage: bool = False) -> Rewritten:
    """The request under `degradation`, and asking for the usage it hides; the client's own bytes if nothing changes."""
    edits = list(_edits(request, degradation))
    asks = ask_usage and request.hides_usage
    if not edits and not asks:
        return Rewritten(request.body, ())
    changed = {**request.params, **{edit.name: msgspec.Raw(msgspec.json.encode(edit.after)) for edit in edits}}
    fields = changed if request.inside is None else {**request.fields, request.inside: _object(changed)}
    if asks:
        given = members(fields.get(STREAM_OPTIONS, _NOTHING), STREAM_OPTIONS)
        less = {IN_EVERY_CHUNK: msgspec.Raw(b"false")} if IN_EVERY_CHUNK in given else {}
        fields = {**fields, STREAM_OPTIONS: _object({**given, **less, INCLUDE_USAGE: msgspec.Raw(b"true")})}
    return Rewritten(write_fields(fields), tuple(str(edit) for edit in edits), asks)


def _object(fields: Fields) -> msgspec.Raw:
    return msgspec.Raw(write_fields(fields))


@dataclass(frozen=True, slots=True)
class _Edit:
    """A field set to a lower value; `before` is None where the client left it open."""

    name: str
    before: int | None
    after: int

    def __str__(self) -> str:
        before = "unset" if self.before is None else msgspec.json.encode(self.before).decode()
        return f"{self.name}={before}->{msgspec.json.encode(self.after).decode()}"


def _edits(request: InferenceRequest, degradation: Degradation) -> Iterator[_Edit]:
    """Nothing on a route that lets nobody say how much to generate."""
    if request.caps.names:
        yield from _lower_caps(request, degradation.output_cap)
        yield from _cut_sequences(request, degradation.cut)


def _lower_caps(request: InferenceRequest, cap: int | None) -> Iterator[_Edit]:
    if cap is None:
        return
    given = [(name, read_int(request.params, name)) for name in request.caps.names]
    named = [(name, value) for name, value in given if value is not None]
    for name, value in named:
        if value > cap:
            yield _Edit(name, value, cap)
    if not named:
        # The oldest of the names is the one every release of the engine knows.
        yield _Edit(request.caps.names[-1], None, cap)


def _cut_sequences(request: InferenceRequest, cut: SequenceCut) -> Iterator[_Edit]:
    if cut is SequenceCut.NONE:
        return
    copies = request.copies
    if request.beams:
        yield _Edit("use_beam_search", True, False)
        yield from _lower_least(request)
    if copies > 1 and (request.beams or cut is SequenceCut.ALL):
        yield _Edit("n", copies, 1)
        copies = 1
    for name, least in (("num_beams", 1), ("best_of", copies)):
        value = _foreign_int(request.params, name)
        if value is not None and value > least:
            yield _Edit(name, value, least)


def _lower_least(request: InferenceRequest) -> Iterator[_Edit]:
    """A beam search does not look at `min_tokens`; anything else is refused with more than its own cap."""
    cap = request.caps.default_tokens if request.requested_cap is None else request.requested_cap
    if cap is not None and request.min_tokens > cap:
        yield _Edit("min_tokens", request.min_tokens, cap)


def _foreign_int(fields: Fields, name: str) -> int | None:
    """An integer field that the engine may not know; it is not for kvguard to refuse anything else there."""
    try:
        return read_int(fields, name)
    except InvalidRequest:
        return None
