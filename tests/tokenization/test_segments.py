"""Counting piece by piece: exact for every kind of tokenizer, or not done."""

import random
from collections.abc import Sequence

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from kvguard.tokenization.segments import MAX_BOUNDARIES, SegmentCounter, safe_boundaries
from tests.tokenization.small import CONTROL, trained

WRITTEN = "<s></s><|im_start|><|im_end|><think>"
TEXTS = [
    "the cat",
    " a ",
    "\n\n",
    "e\u0301\ufb01",
    "日本",
    "🎉",
    "x  y",
    "<|im",
    "_end|>",
    "<",
    "\u017f",
    "12345",
    "\u2581",
    "",
]


def spaced(pre_tokenizer: object, normalizer: object | None = None) -> Tokenizer:
    """A SentencePiece-like tokenizer that marks spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=["\u2581"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3 + ["\u2581the\u2581cat"], trainer)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def with_added(*added: AddedToken, normalizer: object | None = None) -> Tokenizer:
    tokenizer = trained()
    tokenizer.add_tokens(list(added))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


TOKENIZERS = {
    "byte level": (with_added(), 3),
    "normalised": (with_added(normalizer=normalizers.NFKC()), 3),
    "stripped": (with_added(normalizer=normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase()])), 3),
    "prefix space": (with_added(normalizer=normalizers.Prepend("_")), 3),
    "normalised token": (with_added(AddedToken("cat", normalized=True, lstrip=True)), 3),
    "metaspace always": (spaced(pre_tokenizers.Metaspace(prepend_scheme="always")), 2),
    "metaspace first": (spaced(pre_tokenizers.Metaspace(prepend_scheme="first")), 0),
    "strips right": (with_added(AddedToken("<think>", rstrip=True, normalized=False)), 3),
    "strips beside": (with_added(AddedToken("at", lstrip=True, rstrip=True, normalized=False)), 3),
    "single word": (with_added(AddedToken("cat", single_word=True, normalized=False)), 0),
    "longer": (with_added(AddedToken("<|im_end|>\n", normalized=False)), 2),
    "overlapping": (with_added(AddedToken("x<|im_st", normalized=False)), 2),
    "white": (with_added(AddedToken("\n\n", normalized=False)), 3),
}


def texts_with(boundaries: Sequence[str], *, seed: int, count: int = 300) -> list[str]:
    rng = random.Random(seed)
    parts = [*TEXTS, *boundaries, *(text[1:] for text in boundaries), *(text[:-1] for text in boundaries), "at", "cat"]
    return ["".join(rng.choice(parts) for _ in range(rng.randint(0, 9))) for _ in range(count)]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_add_up_to_the_whole(kind: str) -> None:
    """For random texts full of control tokens, whole and broken, the count is the tokenizer's own."""
    tokenizer, boundaries_expected = TOKENIZERS[kind]
    boundaries = safe_boundaries(tokenizer, WRITTEN)
    assert len([text for text in boundaries if text != "<unk>"]) == boundaries_expected
    counter = SegmentCounter(tokenizer, boundaries)
    assert counter.splits == bool(boundaries)
    texts = texts_with([*CONTROL, "</s>", "<think>"], seed=1)
    for special in (True, False):
        expected = tuple(len(tokenizer.encode(text, add_special_tokens=special).ids) for text in texts)
        assert counter.count(texts, special=special) == expected


def test_only_control_tokens_a_template_writes_split_a_text() -> None:
    """Tokens that are not written, and more of them than are worth looking for, split nothing."""
    many = [AddedToken(f"<tool_{number:03}>", normalized=False) for number in range(MAX_BOUNDARIES + 5)]
    tokenizer = with_added(*many)
    assert safe_boundaries(tokenizer, "<|im_end|> only") == ["<|im_end|>"]
    assert len(safe_boundaries(tokenizer, "".join(token.content for token in many))) == MAX_BOUNDARIES


def test_a_tokenizer_that_reads_control_tokens_as_text_is_not_split() -> None:
    """Where control tokens in a text are plain text, nothing splits it."""
    tokenizer = trained()
    tokenizer.encode_special_tokens = True
    assert safe_boundaries(tokenizer, WRITTEN) == []


class Counted:
    """A tokenizer that remembers what it was asked to encode."""

    def __init__(self) -> None:
        self.inner = trained()
        self.encoded: list[str] = []

    def num_special_tokens_to_add(self, pair: bool) -> int:
        return self.inner.num_special_tokens_to_add(pair)

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[object]:
        self.encoded += texts
        return self.inner.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def test_a_repeated_start_is_encoded_once() -> None:
    """The next turn of a conversation encodes what is new in it."""
    tokenizer = Counted()
    counter = SegmentCounter(tokenizer, ["<|im_end|>"])
    first = "system text<|im_end|>question"
    counter.count([first], special=False)
    counter.count([first + "<|im_end|>answer<|im_end|>system text"], special=False)
    assert tokenizer.encoded == ["system text", "question", "answer"]


def test_the_least_recently_used_counts_are_forgotten() -> None:
    """The memory of counts has a bound, and what is used stays."""
    tokenizer = Counted()
    counter = SegmentCounter(tokenizer, [], max_entries=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        counter.count([text], special=True)
    assert tokenizer.encoded == ["a", "b", "c", "b"]
    assert len(counter._known._counts) == 2
