"""Which layers of a hybrid attend, and what each kind keeps."""

import pytest

from kvguard.modelspec.fields import Fields, UnsupportedConfig
from kvguard.modelspec.hybrid import Caches, Mixer, at, compose, last_of_each, listed, numbered, refuse_window, spelled
from kvguard.modelspec.spec import IndexerSpec

A, S, B, N = Mixer.ATTENTION, Mixer.STATE, Mixer.BOTH, Mixer.NOTHING


@pytest.mark.parametrize("name", ["layer_types", "layers_block_type"])
def test_listed(name: str) -> None:
    """Old and new words for a layer mean the same, under either name."""
    words = ["attention", "full_attention", "mamba", "linear_attention", "hybrid", "moe"]
    assert listed(Fields({name: words}), num_layers=6) == (A, A, S, S, B, N)


def test_no_list() -> None:
    """A missing list is no list, not an empty one."""
    assert listed(Fields({"layer_types": None}), num_layers=2) is None


@pytest.mark.parametrize("words", [[], ["mamba"], ["mamba"] * 3, ["mamba", "gru"], ["mamba", 1]])
def test_bad_lists(words: list[object]) -> None:
    """A list of another length or with an unknown word is refused by name."""
    with pytest.raises(UnsupportedConfig, match="layers_block_type"):
        listed(Fields({"layers_block_type": words}), num_layers=2)


def test_spelled() -> None:
    """Each letter is a layer."""
    assert spelled(Fields({"pattern": "M*-"}), "pattern", {"M": S, "*": A, "-": N}) == (S, A, N)


@pytest.mark.parametrize(
    ("numbers", "first", "expected"), [([0, 3], 0, {0, 3}), ([1, 4], 1, {0, 3}), ([], 0, set()), (None, 0, None)]
)
def test_numbered(numbers: list[int] | None, first: int, expected: set[int] | None) -> None:
    """Numbers count from 0 whatever the file counts from."""
    assert numbered(Fields({"layers": numbers}), "layers", num_layers=4, first=first) == expected


@pytest.mark.parametrize(("numbers", "first"), [([4], 0), ([5], 1), ([0], 1), ([-1], 0)])
def test_numbers_of_no_layer(numbers: list[int], first: int) -> None:
    """One step outside either end is refused."""
    with pytest.raises(UnsupportedConfig, match="layers"):
        numbered(Fields({"layers": numbers}), "layers", num_layers=4, first=first)


def test_intervals() -> None:
    """The last layer of each whole group attends."""
    assert last_of_each(3, num_layers=7) == (S, S, A, S, S, A, S)
    assert at({1}, num_layers=2, mixer=B) == (S, B)


def test_compose_reads_only_what_a_layer_has() -> None:
    """A kind that no layer has need not be described."""

    def unread() -> Caches:
        raise AssertionError("read")

    cache = IndexerSpec(head_size=128)
    assert compose((A, N), attention=lambda: (cache,), state=unread) == ((cache,), ())
    assert compose((S, N), attention=unread, state=lambda: (cache,)) == ((cache,), ())
    assert compose((B,), attention=lambda: (cache,), state=lambda: (cache,)) == ((cache, cache),)


def test_leftover_windows() -> None:
    """A window that is switched off, null or 0 is a leftover; any other is refused."""
    for leftover in ({"sliding_window": 4096, "use_sliding_window": False}, {"sliding_window": None}, {}):
        refuse_window(Fields(leftover))
    with pytest.raises(UnsupportedConfig, match="sliding_window"):
        refuse_window(Fields({"sliding_window": 4096}))
