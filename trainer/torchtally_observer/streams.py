"""Rows without indices: the smallest of their checksums, which are the same rows wherever they are handed out.

The k smallest distinct values of a uniform hash estimate how many distinct rows there are (Bar-Yossef and others,
2002), and those of two ranks how many rows both have.
"""

import base64
import heapq
import zlib
from array import array
from collections.abc import Mapping

from torchtally_observer import contents

KEPT = 128
_KEYS = ("__key__", "id", "key", "idx", "index")


class Stream:
    """The rows of one pass of an iterable dataset.

    Args:
        single: Whether the loader does not batch: an item is a sample, or a batch that the dataset has made.
    """

    def __init__(self, single):
        self._single = single
        self._heap, self._kept = [], set()  # negative, so that the largest one comes first
        self._read = 0
        self._keyed = False

    def add(self, batch):
        """Add the rows of a batch. Returns their number."""
        keys = _keys(batch)
        if keys is not None:
            self._keyed = True
            sums = [zlib.crc32(str(each).encode(errors="replace")) for each in keys]
            rows = len(sums)
        else:
            found = contents.leaves(batch)
            rows = self._rows(found)
            if rows is None:
                rows, sums = 1, [_joined(contents.of_sample(batch))]
            else:
                readers = contents.readers(found, rows)
                sums = [_joined([read(at) for read in readers]) for at in range(rows)]
        heap, kept = self._heap, self._kept
        for each in sums:
            if each is None:
                continue
            self._read += 1
            if (len(heap) == KEPT and each >= -heap[0]) or each in kept:
                continue
            if len(heap) == KEPT:
                kept.discard(-heapq.heapreplace(heap, -each))
            else:
                heapq.heappush(heap, -each)
            kept.add(each)
        return rows

    def _rows(self, found):
        """The rows of a batch; None where it is one sample."""
        counts = [each for each in map(contents.rows_of, found) if each is not None]
        if not counts or (self._single and (len(counts) < 2 or len(set(counts)) > 1)):
            return None
        return counts[0]

    def values(self):
        """The fields of the line."""
        kept = array("I", sorted(self._kept))
        return {
            "rows": self._read,
            "keys": self._keyed,
            "smallest": base64.b64encode(kept.tobytes()).decode().rstrip("="),
        }


def _keys(batch):
    if not isinstance(batch, Mapping):
        return None
    for name in _KEYS:
        keys = batch.get(name)
        if isinstance(keys, str):
            return [keys]
        if isinstance(keys, (list, tuple)) and all(isinstance(each, (str, int)) for each in keys):
            return keys
    return None


def _joined(sums):
    """One checksum of those of a row, spread over 32 bits; None for a row that cannot be read."""
    return zlib.crc32(array("Q", sums).tobytes()) if sums else None
