"""An inference request, as any wire format yields it: what the KV cache needs to know. `rewrite` writes it back."""

import enum
from dataclasses import dataclass, field, replace

import msgspec

from kvguard.admission.footprint import Demand, Trait
from kvguard.admission.population import Population
from kvguard.admission.release import Release
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
)
from kvguard.protocols.media import MAX_PARTS, apart
from kvguard.protocols.prompt_lengths import cut, longest_prompt, with_slack
from kvguard.protocols.prompts import ChatPrompt, OpenEndedPrompt, PairedPrompts, Prompt, PromptList
from kvguard.protocols.sse import StreamFormat

MAX_COPIES = 16384  # vLLM's own limit on n

STREAM_OPTIONS = "stream_options"
INCLUDE_USAGE = "include_usage"
IN_EVERY_CHUNK = "continuous_usage_stats"  # has an effect only beside the former

_NOTHING = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRule:
    """Where a route keeps its output cap: field names, strongest first, and the engine's default without one.

    `default_tokens` None means the rest of the context. Without names there is nothing to say about it. Names that are
    `aliases` are of one field, which a request may have once, be it with null.
    """

    names: tuple[str, ...]
    default_tokens: int | None
    aliases: bool = False

    def known_to(self, release: Release | None) -> tuple[str, ...]:
        """The names this release of the engine looks at."""
        return self.names if release is None else tuple(name for name in self.names if name not in release.ignored_caps)

    def default_of(self, release: Release | None) -> int | None:
        """What stands for an absent cap in this release."""
        return self.default_tokens if release is None else release.default_output_tokens


class Copies(enum.Enum):
    """What makes several sequences of one prompt: `n` and the beams of a search, several answers of which the best is
    given, or nothing that a client may write.
    """

    N = "n"
    BEST_OF = "best_of"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """One parsed request. `requested_cap` is the client's own, None when it named none; `stops` says that it names stop
    sequences, `route` the label of the route it came by, `model` the name if it is one as text.

    `params` are the fields that say how to generate: those of the body, or those of its member `inside`. A stream that
    `hides_usage` tells no token counts, though it would if it were asked to. One that `runs_tools` may make the engine
    generate several times within the call, of which its usage is the sum. One that is `padded` has prompts as long as
    the context; `around_tokens` are at most what the engine puts around each prompt.

    As long as there is nothing `inside` the body, the engine takes `implied` for its members. A body that is several
    requests in one has them as `parts`, each a member of the list `inside`. `stream_format` is how the answer streams
    where the route alone does not tell.
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
    copied_by: Copies = Copies.N
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
    implied: Fields = field(default_factory=dict)
    parts: "tuple[InferenceRequest, ...]" = ()
    stream_format: StreamFormat | None = None
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

    def cap_under(self, release: Release | None) -> int | None:
        """The cap the client named, as far as this release knows the name; None when it left it open."""
        if self.parts:
            caps = [part.wanted_tokens(release) for part in self.parts]
            return max((cap for cap in caps if cap is not None), default=None) if None not in caps else None
        known = self.caps.known_to(release)
        return self.requested_cap if known == self.caps.names else _requested_cap(self.params, known)

    def wanted_tokens(self, release: Release | None) -> int | None:
        """The longest answer the client asks for, be it in silence; None for the rest of the context."""
        named = self.cap_under(release)
        return self.caps.default_of(release) if named is None else named

    def demand(
        self,
        prompt_tokens: tuple[int, ...],
        *,
        context_tokens: int | None,
        assumed_output_tokens: int,
        slack: tuple[int, ...] = (),
        estimated: bool = False,
        release: Release | None = None,
    ) -> Demand:
        """What the engine will be asked to hold, caps and cuts resolved the way the engine resolves them.

        `context_tokens` is the model's limit, None when unknown; `assumed_output_tokens` stands for a cap the client
        left open, `release` is the engine's. `slack` is by how many each count may be too low: headroom for blocks,
        which says nothing about the room for an answer. History that only the engine has may fill the whole context.
        """
        open_ended = self.padded or isinstance(self.prompt, OpenEndedPrompt)
        if open_ended:
            slack = (context_tokens or 0,) * len(prompt_tokens)
        elif self.around_tokens:
            slack = tuple(more + self.around_tokens for more in slack or (0,) * len(prompt_tokens))
        longest = longest_prompt(self.truncate_to, context_tokens, generates=self.caps.default_tokens != 0)
        counted = cut(prompt_tokens, longest)
        prompts = cut(with_slack(prompt_tokens, slack, context_tokens), longest) if slack else counted
        wanted = self.wanted_tokens(release)
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
            names_cap=self.cap_under(release) is not None,
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
        prompt=with_media_apart(prompt),
        stream=read_bool(fields, "stream"),
        copies=copies,
        beams=copied and read_bool(params, "use_beam_search") and copies > 1,
        requested_cap=_requested_cap(params, caps.names),
        min_tokens=max(min_tokens, 0),
        truncate_to=read_int(fields, "truncate_prompt_tokens"),
        special_tokens=special,
        fixed_length=read_bool(params, "ignore_eos"),
        traits=_traits(params),
        stops=is_filled(params, "stop") or is_filled(params, "stop_token_ids"),
        model=read_text(fields, "model"),
    )


def with_media_apart(prompt: Prompt) -> Prompt:
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


def _requested_cap(fields: Fields, names: tuple[str, ...]) -> int | None:
    for name, cap in [(name, read_int(fields, name)) for name in names]:
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
