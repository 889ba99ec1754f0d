"""What one request asks of the KV cache, in tokens and in the engine's blocks.

A sequence holds whole blocks by the engine's rule (`blocks.py`). Reservations count prompt plus expected output; the
engine's final use is one token less, because the last sampled token never gets KV (vLLM, TGI and transformers agree),
so a reservation is never a block short at a boundary.
"""

import enum
from collections import Counter
from dataclasses import dataclass, replace

from kvguard.admission.blocks import NO_SURGE, BlockRule, Surge
from kvguard.admission.population import ANYBODY, Population
from kvguard.admission.prefix import PrefixMark

MANY_PROMPTS = 64  # so many that it pays to look for those of one length first


class Trait(enum.Enum):
    """What makes a shorter or narrower answer unacceptable for a request."""

    TOOLS = "tools"
    STRUCTURED_OUTPUT = "structured_output"
    REASONING = "reasoning"
    OPTED_OUT = "opted_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One HTTP request as the KV cache sees it: prompts x copies sequences.

    `prompts` holds the tokens of each prompt, of which `slack_tokens` over all prompts are headroom for a count that
    may be too low. `output_cap` is what the engine would let each sequence generate (None: no bound is known) and
    `asked_cap` what it would have, had nothing been lowered; `expected_output` is what to reserve for, never above the
    cap; `names_cap` says that the request itself names one. `beams` says that the copies are beams of one answer, so
    that one sequence still is a valid answer; `fixed_length` that every answer runs to its cap; `streamed` that its
    growth can be watched; `estimated` that the prompts were not counted but guessed. `population` is whose answers tell
    how long its own gets. `prefix` marks the start of its only prompt, where requests that begin alike share blocks.
    """

    prompts: tuple[int, ...]
    copies: int = 1
    output_cap: int | None
    asked_cap: int | None
    expected_output: int
    names_cap: bool = True
    min_tokens: int = 0
    beams: bool = False
    fixed_length: bool = False
    streamed: bool = True
    estimated: bool = False
    slack_tokens: int = 0
    traits: frozenset[Trait] = frozenset()
    population: Population = ANYBODY
    prefix: tuple[PrefixMark, ...] = ()

    @property
    def sequences(self) -> int:
        return len(self.prompts) * self.copies

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens as the engine's usage counts them, as far as known: once per prompt, however many copies."""
        return sum(self.prompts) - self.slack_tokens

    def prompt_blocks(self, rule: BlockRule) -> int:
        """Blocks all sequences hold once their prompts are computed."""
        return self.held_blocks(rule, produced=0)

    def held_blocks(self, rule: BlockRule, *, produced: int) -> int:
        """Blocks all sequences hold once each has generated `produced` tokens."""
        if len(self.prompts) < MANY_PROMPTS:
            return self.copies * sum(self.sequence_blocks(rule, tokens, produced) for tokens in self.prompts)
        alike = Counter(self.prompts).items()
        return self.copies * sum(number * self.sequence_blocks(rule, tokens, produced) for tokens, number in alike)

    def sequence_blocks(self, rule: BlockRule, prompt_tokens: int, produced: int) -> int:
        """Blocks one sequence after a prompt of so many tokens holds once it has generated `produced`."""
        if rule.ahead is None:
            return rule.reached_blocks(prompt_tokens + produced)
        cap = self.expected_output if self.output_cap is None else self.output_cap
        return rule.ahead.blocks(
            prompt_tokens, cap, named=self.names_cap, produced=produced, block_size=rule.block_size
        )

    def reserved_blocks(self, rule: BlockRule) -> int:
        """Blocks all sequences hold if each generates what is expected of it."""
        return self.held_blocks(rule, produced=self.expected_output)

    def surge(self, rule: BlockRule) -> Surge:
        """What the prefills of all sequences hold besides."""
        if not rule.surges:
            return NO_SURGE
        return sum((rule.surge(tokens) for tokens in self.prompts), NO_SURGE).times(self.copies)

    def largest_prompt_blocks(self, rule: BlockRule) -> int:
        """Blocks the longest prompt needs while it is computed: more than an engine has means it can never run."""
        return rule.prefill_blocks(max(self.prompts, default=0))

    def with_prompts_of(self, other: "Demand") -> "Demand":
        """The same demand with the prompts of another, better counted."""
        return replace(
            self,
            prompts=other.prompts,
            slack_tokens=other.slack_tokens,
            estimated=other.estimated,
            prefix=other.prefix,
        )

    def without_leading(self, tokens: int) -> "Demand":
        """The same demand with so many tokens fewer at the start of each prompt."""
        return replace(self, prompts=tuple(prompt - tokens for prompt in self.prompts)) if tokens else self

    def with_cap(self, output_cap: int) -> "Demand":
        """The same demand under a lower output cap."""
        expected = min(self.expected_output, output_cap)
        return replace(self, output_cap=output_cap, expected_output=expected, names_cap=True)

    def with_one_sequence(self) -> "Demand":
        """The same demand with a single sequence per prompt."""
        return replace(self, copies=1, beams=False)
