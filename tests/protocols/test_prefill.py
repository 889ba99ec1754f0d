"""Requests that have no say in how much is generated."""

from kvguard.admission.policy import Degradation, SequenceCut
from kvguard.protocols.fields import read_fields
from kvguard.protocols.prefill import read_prefill
from kvguard.protocols.prompts import TextPrompts
from kvguard.protocols.rewrite import rewrite

BODY = (
    b'{"model":"m","add_special_tokens":false,"n":"x","stream":"x","min_tokens":[],"ignore_eos":"x","max_tokens":-5,'
    b'"tools":[1],"best_of":7,"num_beams":7,"use_beam_search":true,"truncate_prompt_tokens":"x"}'
)


def test_nothing_else_is_read() -> None:
    """What says how to generate on other routes may hold anything; the model and the special tokens count."""
    request = read_prefill(BODY, read_fields(BODY), TextPrompts(("hi",)), output_tokens=0, truncate_to=None)
    assert (request.model, request.special_tokens, request.copies, request.stream) == ("m", False, 1, False)
    assert (request.min_tokens, request.traits, request.beams) == (0, frozenset(), False)
    assert request.model_field == {"model": request.fields["model"]}


def test_nothing_is_ever_changed() -> None:
    """Neither a cap nor a cut finds a field to write to."""
    request = read_prefill(BODY, read_fields(BODY), TextPrompts(("hi",)), output_tokens=1, truncate_to=None)
    rewritten = rewrite(request, Degradation(output_cap=1, cut=SequenceCut.ALL), ask_usage=True)
    assert (rewritten.body, rewritten.changes) == (BODY, ())


def test_the_demand_is_the_prompts_and_what_comes_after_each() -> None:
    """The length is known before, so nothing is assumed and nothing learned."""
    for tokens in (0, 1):
        request = read_prefill(b"{}", {}, TextPrompts(("a", "b")), output_tokens=tokens, truncate_to=None)
        demand = request.demand((10, 20), context_tokens=100, assumed_output_tokens=512)
        assert (demand.prompts, demand.output_cap, demand.expected_output) == ((10, 20), tokens, tokens)
        assert (demand.fixed_length, demand.streamed, demand.sequences) == (True, False, 2)
