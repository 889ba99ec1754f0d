"""Counting a text piece by piece, so that the repeated start of a conversation is tokenised once.

Control tokens split a text before anything else looks at it: what is between two of them is normalised, split and
encoded by itself. The tokens of the whole are then the tokens of the pieces and one for every control token between
them, and the count of a piece holds wherever the piece occurs. A tokenizer for which that is not so is found out when
it is loaded, and its texts are counted whole.
"""

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

MAX_ENTRIES = 65_536
MAX_BOUNDARIES = 32
DIGEST_BYTES = 16

# Texts in which a tokenizer would betray that it looks across a control token.
_PROBES = (
    "",
    " ",
    "a",
    " a b ",
    "\n\n",
    "user\nHello, world!\n",
    "\u00e9e\u0301 \ufb01 \u1100\u1161 \u00bd",
    "\u4f60\u597d \u4e16\u754c",
    "\U0001f469\u200d\U0001f469 \U0001f389",
    "1234567 3.14",
    "\tdef f(x):\n\t\treturn x  \n",
    "<|",
    "\u2581x",
)


class SegmentCounter:
    """Counts texts with one tokenizer; safe to use from several threads."""

    def __init__(self, tokenizer: "Tokenizer", boundaries: Iterable[str], *, max_entries: int = MAX_ENTRIES) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.num_special_tokens_to_add(False)
        self._known = _Counts(max_entries)
        self._boundary = _pattern(boundaries)

    @property
    def splits(self) -> bool:
        """Whether texts are taken apart, not only remembered whole."""
        return self._boundary is not None

    def count(self, texts: Sequence[str], *, special: bool) -> tuple[int, ...]:
        """Tokens of each text; `special` counts those the tokenizer adds around it as well."""
        taken_apart = [self._pieces(text) for text in texts]
        counts = self._count_pieces([piece for pieces in taken_apart for piece in pieces])
        added = self._special if special else 0
        return tuple(
            len(pieces) - 1 + sum(counts[piece] for piece in pieces if piece) + added for pieces in taken_apart
        )

    def _pieces(self, text: str) -> list[str]:
        return [text] if self._boundary is None else self._boundary.split(text)

    def _count_pieces(self, pieces: Iterable[str]) -> dict[str, int]:
        keys = {piece: _digest(piece) for piece in pieces if piece}
        known = self._known.get(keys.values())
        missing = [piece for piece, key in keys.items() if key not in known]
        # Plain `encode` holds the interpreter lock for the whole text.
        encodings = self._tokenizer.encode_batch_fast(missing, add_special_tokens=False) if missing else []
        found = {keys[piece]: len(encoding) for piece, encoding in zip(missing, encodings, strict=True)}
        self._known.put(found)
        known |= found
        return {piece: known[key] for piece, key in keys.items()}


class _Counts:
    """The counts used last. An entry is a digest and a number, so that a bound on entries bounds the bytes too."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, keys: Iterable[bytes]) -> dict[bytes, int]:
        with self._lock:
            known = {key: self._counts[key] for key in keys if key in self._counts}
            for key in known:
                self._counts.move_to_end(key)
        return known

    def put(self, counts: dict[bytes, int]) -> None:
        with self._lock:
            self._counts |= counts
            while len(self._counts) > self._max_entries:
                self._counts.popitem(last=False)


def _digest(piece: str) -> bytes:
    return hashlib.blake2b(piece.encode(), digest_size=DIGEST_BYTES).digest()


def _pattern(boundaries: Iterable[str]) -> re.Pattern[str] | None:
    # The longest first, as the tokenizer prefers it.
    ordered = sorted(set(boundaries), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def safe_boundaries(tokenizer: "Tokenizer", written: str) -> list[str]:
    """The control tokens that occur in what templates write and at which a text can be taken apart.

    None when the tokenizer fails the probes, as one does that treats the start of the whole text apart (`Metaspace`
    with `prepend_scheme` first).
    """
    added = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.normalized]
    if tokenizer.encode_special_tokens or any(token.single_word for token in added):
        return []
    others = [token.content for token in added]
    safe = {token.content for token in added if token.content in written and _stands_alone(token, others)}
    chosen = sorted(safe, key=lambda text: (-len(text), text))[:MAX_BOUNDARIES]
    return chosen if _splits_exactly(tokenizer, chosen) else []


def _stands_alone(token: "AddedToken", others: Iterable[str]) -> bool:
    """Whether every occurrence of the token in a text is that token, and takes nothing beside it."""
    text = token.content
    if token.lstrip or token.rstrip or text.strip() != text or not text:
        return False
    return not any(_covers(other, text) for other in others if other != text)


def _covers(other: str, text: str) -> bool:
    """Whether an occurrence of the other token can hold the start of this one."""
    return text in other or any(text.startswith(other[start:]) for start in range(1, len(other)))


def _splits_exactly(tokenizer: "Tokenizer", boundaries: Sequence[str]) -> bool:
    counter = SegmentCounter(tokenizer, boundaries)
    texts = [left + boundary + right + boundary * 2 for boundary in boundaries for left in _PROBES for right in _PROBES]
    texts += [boundary + probe for boundary in boundaries for probe in _PROBES]
    for special in (True, False):
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        if counter.count(texts, special=special) != tuple(map(len, encodings)):
            return False
    return True
