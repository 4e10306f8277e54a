"""Packed rows: each token of each document is in one row, by the plan that one piece after another makes."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtally import Packed
from torchtally.accounting.data.packed import cu_seqlens
from torchtally.errors import Refused


class Texts:
    """Documents whose tokens are (document, place) as one number, and which count how often they are read."""

    fingerprint = "texts"

    def __init__(self, lengths: list[int]):
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return 1000 * index + np.arange(self.lengths[index])


def one_by_one(sizes: list[int], row: int) -> list[int]:
    """Best-fit decreasing as it is defined: of rows with the same room, the first."""
    rooms: list[int] = []
    placed = [0] * len(sizes)
    for piece in sorted(range(len(sizes)), key=lambda piece: -sizes[piece]):
        fits = [number for number, room in enumerate(rooms) if room >= sizes[piece]]
        if not fits:
            fits, rooms = [len(rooms)], [*rooms, row]
        placed[piece] = min(fits, key=lambda number: rooms[number])
        rooms[placed[piece]] -= sizes[piece]
    return placed


lengths = st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any)


@settings(deadline=None)
@given(lengths=lengths, row=st.integers(1, 25))
def test_each_token_is_in_one_row_and_the_rows_are_those_of_the_definition(lengths: list[int], row: int) -> None:
    packed = Packed(Texts(lengths), lengths, row, padding=-1)
    pieces = [
        (document, start, min(row, length - start))
        for document, length in enumerate(lengths)
        for start in range(0, length, row)
    ]
    expected: dict[int, list[Any]] = {}
    for piece, number in zip(pieces, one_by_one([size for _, _, size in pieces], row), strict=True):
        expected.setdefault(number, []).append(piece)
    assert [packed.pieces(number) for number in range(len(packed))] == [expected[each] for each in range(len(expected))]

    tokens = Counter[int]()
    for number, sample in enumerate(packed.__getitems__(range(len(packed)))):
        ids, labels, positions = (sample[name] for name in ("input_ids", "labels", "position_ids"))
        assert ids.shape == labels.shape == positions.shape == (row,)
        tokens.update(ids.tolist())
        begins = cu_seqlens(positions).tolist()
        sizes = [size for _, _, size in packed.pieces(number)]
        rest = row - sum(sizes)
        assert np.diff(begins).tolist() == [*sizes, *[rest] * bool(rest)]
        for (document, start, size), begin in zip(packed.pieces(number), begins, strict=False):
            assert ids[begin : begin + size].tolist() == [1000 * document + start + at for at in range(size)]
            assert labels[begin : begin + size].tolist() == [-100, *ids[begin + 1 : begin + size].tolist()]
        assert set(labels[row - rest :].tolist()) <= {-100}
    padding = tokens.pop(-1, 0)
    assert tokens == Counter(1000 * document + at for document, length in enumerate(lengths) for at in range(length))
    assert padding == len(packed) * row - packed.tokens


def test_a_batch_tells_where_its_pieces_are() -> None:
    packed = Packed([[1, 2], [3], [4, 5, 6]], [2, 1, 3], row=4)
    positions = torch.stack([packed[0]["position_ids"], packed[1]["position_ids"]])
    assert [packed[number]["input_ids"].tolist() for number in (0, 1)] == [[3, 4, 5, 6], [1, 2, 0, 0]]
    assert cu_seqlens(positions).dtype == torch.int32
    assert cu_seqlens(positions).tolist() == [0, 1, 4, 6, 8]


def test_the_plan_is_the_one_that_the_version_names() -> None:
    """A change to any of these needs another name than best-fit-1."""
    packed = Packed(Texts([7, 3, 12, 5, 1]), [7, 3, 12, 5, 1], row=8)
    assert [packed.pieces(row) for row in range(len(packed))] == [
        [(2, 0, 8)],
        [(0, 0, 7), (4, 0, 1)],
        [(1, 0, 3), (3, 0, 5)],
        [(2, 8, 4)],
    ]
    assert packed.fingerprint == "best-fit-1 sha256:d8c55fabc60759bf"


@pytest.mark.parametrize(
    ("documents", "lengths", "row", "sentence"),
    [
        ([[1]], [1, 2], 4, "lengths must have one for each of the 1 documents, and has 2"),
        ([[1]], [-1], 4, "lengths must be whole numbers from 0, one for each document"),
        ([[1]], [1.0], 4, "lengths must be whole numbers from 0, one for each document"),
        ([[]], [0], 4, "the 1 documents have no token"),
        ([[1]], [1], 0, "row=0 must be a whole number from 1"),
        (iter([]), [1], 4, "documents must be a map-style dataset, and is a list_iterator"),
    ],
)
def test_bad_input_is_one_sentence(documents: Any, lengths: Any, row: int, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        Packed(documents, lengths, row)
    assert sentence in str(refused.value)


def test_a_document_that_is_not_as_long_as_stated_is_refused() -> None:
    with pytest.raises(Refused, match=r"document 1 must have the shape \(3,\), and has \(2,\)"):
        Packed([[1], [2, 3]], [1, 3], row=4)[0]
    with pytest.raises(Refused, match=r"document 0 must have the shape \(2,\), and has \(1, 2\)"):
        Packed([[[1, 2]]], [2], row=4)[0]
    documents = [[1], [2, 3]]
    packed = Packed(documents, [1, 2], row=4)
    before = packed.fingerprint
    documents.append([4])
    assert packed.fingerprint != before
    with pytest.raises(
        Refused, match="the documents: the dataset had 2 samples when its loader was made, it has 3 now"
    ):
        packed[0]
    for row in (-1, 1):
        with pytest.raises(IndexError):
            packed[row]
