"""Rows without indices: the smallest of their checksums, which are the same rows wherever they are handed out.

The k smallest distinct values of a uniform hash estimate how many distinct rows there are (Bar-Yossef and others,
2002), and those of two ranks how many rows both have.
"""

import base64
import hashlib
import heapq
import zlib
from array import array

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
        self._heap = []  # negative, so that the largest one comes first
        self._kept = {}  # by checksum: the row that it came with first
        self._read, self._order = 0, hashlib.blake2b(digest_size=8)
        self._keyed = False

    def add(self, _index, batch):
        """Add the rows of a batch. Returns their number."""
        try:
            sums = self._sums(batch)
        except Exception:  # what cannot be read is a row that is not known
            sums = [None]
        heap, kept = self._heap, self._kept
        for each in sums:
            if each is None:
                continue
            self._read += 1
            self._order.update(each.to_bytes(4, "little"))
            if (len(heap) == KEPT and each >= -heap[0]) or each in kept:
                continue
            if len(heap) == KEPT:
                del kept[-heapq.heapreplace(heap, -each)]
            else:
                heapq.heappush(heap, -each)
            kept[each] = self._read
        return len(sums)

    def _sums(self, batch):
        if isinstance(batch, (list, tuple)) and batch and all(contents.as_dict(each) is not None for each in batch):
            return [self._of_one(each) for each in batch]  # samples that nobody has put together
        return self._of_batch(batch)

    def _of_one(self, sample):
        keys = _keys(sample)
        if keys is None:
            return _joined(contents.of_sample(sample))
        self._keyed = True
        return zlib.crc32(str(keys[0]).encode(errors="replace"))

    def _of_batch(self, batch):
        keys = _keys(batch)
        if keys is not None:
            self._keyed = True
            return [zlib.crc32(str(each).encode(errors="replace")) for each in keys]
        found = contents.leaves(batch)
        rows = self._rows(found)
        if rows is None:
            return [_joined(contents.of_sample(batch))]
        readers = contents.readers(found, rows)
        return [_joined([read(at) for read in readers]) for at in range(rows)]

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
            "order": self._order.hexdigest(),
            "keys": self._keyed,
            "fresh": max(self._kept.values(), default=0),
            "smallest": base64.b64encode(kept.tobytes()).decode().rstrip("="),
        }


def _keys(batch):
    named = contents.as_dict(batch)
    for name in _KEYS if named else ():
        keys = named.get(name)
        if isinstance(keys, str):
            return [keys]
        if isinstance(keys, (list, tuple)) and all(isinstance(each, (str, int)) for each in keys):
            return keys
    return None


def _joined(sums):
    """One checksum of those of a row, spread over 32 bits; None for a row that cannot be read."""
    return zlib.crc32(array("Q", sums).tobytes()) if sums else None
