"""Documents packed into rows of equally many tokens, by a plan that is computed from their lengths alone.

docs/guides/mixtures.md shows how.
"""

import hashlib
import json
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from torchtally.accounting.data import facts
from torchtally.accounting.data.fingerprint import UNKNOWN, fingerprint, of_parts
from torchtally.errors import Refused, whole
from torchtally.proof.permutation import Indices

NAME = "best-fit-1"
IGNORED = -100  # of labels, as torch's cross_entropy has it
_LONGEST = 1 << 31  # tokens of a row


class Packed(Dataset[dict[str, Tensor]]):
    """Rows of `row` tokens each, into which documents are packed: each token of each document is in one row.

    A document that is longer than a row is cut into pieces of a whole row, and what is left. Of these pieces, no other
    is cut. The longest come first, and each goes into the row that it leaves the least room in: best-fit decreasing, as
    in Ding and others, "Fewer Truncations Improve Language Modeling" (ICML 2024).

    A sample is a dictionary of int64 tensors (row,):

    - `input_ids`: the tokens, with `padding` behind the last piece.
    - `labels`: the same, with -100 at the first token of each piece and at the padding, so that no token is predicted
      from another document.
    - `position_ids`: the position in the piece.

    A position of 0 begins a piece, or the padding, for an attention mask: `cu_seqlens`.

    Args:
        documents: A map-style dataset of documents, each a sequence of token numbers: a tensor, an array, or a list.
        lengths: Number of tokens of each document. An empty one is in no row.
        row: Number of tokens of a row.
        padding: Token behind the last piece of a row.

    Attributes:
        fingerprint: Text that differs for other lengths, and for another fingerprint of the documents.
        tokens: Number of tokens of all documents.

    Example:
        >>> documents = [[11, 12, 13], [21, 22], [31, 32, 33, 34, 35, 36]]
        >>> rows = Packed(documents, [3, 2, 6], row=5)
        >>> len(rows), rows[1]["input_ids"], rows[1]["position_ids"]
        (3, tensor([11, 12, 13, 21, 22]), tensor([0, 1, 2, 0, 1]))

    Raises:
        Refused: An argument is not valid, or a document has another length than was stated.
    """

    def __init__(self, documents: Any, lengths: Sequence[int], row: int, padding: int = 0):
        facts.check(documents, "documents")
        found = np.asarray(lengths)
        if found.ndim != 1 or (found.size and (found.dtype.kind not in "iu" or found.min() < 0)):
            raise Refused("lengths must be whole numbers from 0, one for each document")
        if len(found) != len(documents):
            raise Refused(f"lengths must have one for each of the {len(documents)} documents, and has {len(found)}")
        row = whole("row", row, 1, _LONGEST - 1)
        self._documents, self._row, self._padding = documents, row, padding
        self._lengths: Indices = found.astype(np.int64)
        self.tokens = int(self._lengths.sum())
        if not self.tokens:
            raise Refused(f"the {len(found)} documents have no token")
        self._pieces = _pieces(self._lengths, row)
        rows = _packed(self._pieces.sizes, row)
        self._order = np.argsort(rows, kind="stable")  # the pieces, by their row
        self._ends = np.cumsum(np.bincount(rows))  # of each row's, among these
        self._digest = hashlib.sha256(self._lengths.astype(">i8").tobytes()).hexdigest()

    @property
    def fingerprint(self) -> str:
        printed = str(fingerprint(self._documents) or UNKNOWN)
        facts = [self._digest, len(self._documents), self._row, self._padding, printed]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        return of_parts(f"{NAME} sha256:{digest}", [printed])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        """Return the rows at `indices`. Raises IndexError, and Refused if a document does not have its length."""
        places = [self.pieces(index) for index in indices]
        wanted = sorted({document for row in places for document, _, _ in row})
        read = facts.checked(self._documents, wanted, len(self._lengths), "the documents")
        texts: dict[int, NDArray[Any]] = {}
        for document, text in zip(wanted, read, strict=True):
            texts[document] = np.asarray(text)
            if texts[document].shape != (length := (int(self._lengths[document]),)):
                raise Refused(f"document {document} must have the shape {length}, and has {texts[document].shape}")
        return [self._made(row, texts) for row in places]

    def pieces(self, index: int) -> list[tuple[int, int, int]]:
        """Return what is in a row: the document, its first token there, and the number of tokens of each piece."""
        if not 0 <= index < len(self):
            raise IndexError(f"rows must be from 0 to {len(self) - 1}")
        first = int(self._ends[index - 1]) if index else 0
        own, pieces = self._order[first : self._ends[index]], self._pieces
        columns = (each[own].tolist() for each in (pieces.documents, pieces.starts, pieces.sizes))
        return [*zip(*columns, strict=True)]

    def _made(self, pieces: list[tuple[int, int, int]], texts: dict[int, NDArray[Any]]) -> dict[str, Tensor]:
        tokens, labels = np.full(self._row, self._padding), np.full(self._row, IGNORED)
        positions, at = np.zeros(self._row, dtype=np.int64), 0
        for document, start, size in pieces:
            tokens[at : at + size] = texts[document][start : start + size]
            labels[at + 1 : at + size] = tokens[at + 1 : at + size]
            positions[at : at + size] = np.arange(size)
            at += size
        positions[at:] = np.arange(self._row - at)
        made = {"input_ids": tokens, "labels": labels, "position_ids": positions}
        return {name: torch.from_numpy(each.astype(np.int64, copy=False)) for name, each in made.items()}


def cu_seqlens(position_ids: Tensor) -> Tensor:
    """Return where the pieces of a batch begin and the last one ends, int32 (pieces + 1,), as FlashAttention takes it.

    Args:
        position_ids: Of a batch of packed rows, int64 (rows, row), or of one row.
    """
    flat = position_ids.flatten()
    begins = (flat == 0).nonzero().flatten()
    return torch.cat([begins, begins.new_tensor([len(flat)])]).to(torch.int32)


class _Pieces:
    """Which part of which document each piece is."""

    def __init__(self, documents: Indices, starts: Indices, sizes: Indices):
        self.documents, self.starts, self.sizes = documents, starts, sizes


def _pieces(lengths: Indices, row: int) -> _Pieces:
    """Each document in pieces of a whole row, and what is left."""
    numbers = -(-lengths // row)
    documents = np.repeat(np.arange(len(lengths)), numbers)
    starts = (np.arange(len(documents)) - np.repeat(np.cumsum(numbers) - numbers, numbers)) * row
    return _Pieces(documents, starts, np.minimum(lengths[documents] - starts, row))


def _packed(sizes: Indices, row: int) -> Indices:
    """The row of each piece. Pieces of the same size are taken in their order, and so are rows with the same room.

    Pieces of a size are placed together: a row that is the best for one of them is so for the next, while there is
    room. That makes it O(different sizes x different rooms) at most, and not O(pieces).
    """
    found = np.empty(len(sizes), dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    cuts = np.flatnonzero(np.diff(sizes[order], prepend=row + 1))
    rooms: list[int] = []  # those that some row has left, ascending
    with_room: dict[int, list[Indices]] = {}  # the rows of each
    rows = 0
    for group in np.split(order, cuts[1:]):
        size, placed = int(sizes[group[0]]), 0
        at = bisect_left(rooms, size)
        while placed < len(group):
            if at < len(rooms):
                room = rooms.pop(at)
                open_rows = np.sort(np.concatenate(with_room.pop(room)))
            else:
                room = row
                open_rows = np.arange(rows, rows + -(-(len(group) - placed) // (row // size)))
                rows += len(open_rows)
            each = room // size
            take = group[placed : placed + each * len(open_rows)]
            found[take] = np.repeat(open_rows, each)[: len(take)]
            placed += len(take)
            full, rest = divmod(len(take), each)
            left = [(room - each * size, open_rows[:full]), (room, open_rows[full + (rest > 0) :])]
            left.append((room - rest * size, open_rows[full : full + (rest > 0)]))
            for free, some in left:
                if free and len(some):
                    if free not in with_room:
                        insort(rooms, free)
                    with_room.setdefault(free, []).append(some)
            at = bisect_left(rooms, size)
    return found
