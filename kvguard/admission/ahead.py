"""How much room an engine reserves for an answer before it begins, where it does so instead of block by block."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The rule of one engine; token counts are those of one sequence.

    Of an answer at most `piece_tokens` are reserved at once, at most `open_piece_tokens` where the client named no cap
    (None: all of it); a longer one queues again, with what it has so far as part of its prompt, and for as much again.
    `speculated_tokens` come on top. Under a `sliding_window` no more is reserved than the window, or than the prompt
    where `window_spares_prompt`. `padded` rounds prompt and output up to whole blocks each.
    """

    piece_tokens: int | None = None
    open_piece_tokens: int | None = None
    speculated_tokens: int = 0
    sliding_window: int | None = None
    window_spares_prompt: bool = False
    padded: bool = False

    def blocks(self, prompt_tokens: int, cap: int, *, named: bool, produced: int, block_size: int) -> int:
        """Blocks reserved while the answer has `produced` tokens of at most `cap`; `named` is a cap the client set."""
        cap = max(cap, 1)
        piece = self.piece_tokens if named else self.open_piece_tokens
        if piece is not None:
            prompt_tokens += max(produced - 1, 0) // piece * piece
            cap = min(cap, piece)
        if self.padded:
            # As if the last token got KV too.
            output = self._within_window(prompt_tokens, prompt_tokens + cap) - prompt_tokens
            padded = -(-prompt_tokens // block_size) + -(-output // block_size)
            return padded + -(-self.speculated_tokens // block_size)
        tokens = self._within_window(prompt_tokens, prompt_tokens + cap - 1 + self.speculated_tokens)
        return -(-tokens // block_size)

    def _within_window(self, prompt_tokens: int, tokens: int) -> int:
        if self.sliding_window is None:
            return tokens
        spared = prompt_tokens if self.window_spares_prompt else 0
        return min(tokens, max(self.sliding_window, spared))
