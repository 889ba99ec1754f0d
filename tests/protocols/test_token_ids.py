"""Lengths of lists of token ids, told by their commas."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvguard.protocols.token_ids import flat_ids, id_lists
from tests.kit.properties import deterministic

NOT_IDS = [b"", b"5", b"[]", b"[ ]", b"[1.0]", b'["1"]', b"[-1]", b"[true]", b"[1,[2]]", b"[[1],2]", b"{}", b"null"]


@pytest.mark.parametrize(
    ("raw", "length"),
    [(b"[1]", 1), (b" [ 1 , 2,\n3] ", 3), (b"[" + b"1," * 1_000_000 + b"1]", 1_000_001), (b"[[1]]", None)]
    + [(raw, None) for raw in NOT_IDS],
)
def test_one_list(raw: bytes, length: int | None) -> None:
    """Commas and one, where there is nothing but whole numbers."""
    assert flat_ids(raw) == length


@pytest.mark.parametrize(
    ("raw", "lengths"),
    [
        (b"[[1,2],[3]]", (2, 1)),
        (b" [ [1, 2] , [3] ,[4,5,6] ] ", (2, 1, 3)),
        (b"[[1],[2],[3],[4]]", None),
        (b"[1]", None),
        (b"[[]]", None),
        (b"[[1],[]]", None),
        (b"[[1][2]]", None),
        (b"[[[1]]]", None),
        (b"[[1],[2]3]", None),
    ]
    + [(raw, None) for raw in NOT_IDS],
)
def test_lists_of_lists(raw: bytes, lengths: tuple[int, ...] | None) -> None:
    """As many as there may be, none of them empty, with commas between them and nothing else."""
    assert id_lists(raw, most=3) == lengths


@deterministic
@given(st.lists(st.lists(st.integers(0, 2**40), max_size=4), max_size=5), st.sampled_from([None, 1]))
def test_they_agree_with_the_lists(ids: list[list[int]], indent: int | None) -> None:
    """However they are written, lengths are those of the lists, and empty lists are no ids."""
    whole = bool(ids) and all(ids)
    assert id_lists(json.dumps(ids, indent=indent).encode(), most=5) == (tuple(map(len, ids)) if whole else None)
    for one in ids:
        assert flat_ids(json.dumps(one, indent=indent).encode()) == (len(one) or None)
