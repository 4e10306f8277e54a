"""What a sample holds, as one checksum for each of its leaves: a label stays where an image is augmented.

Memory is read where it is: no operation of PyTorch runs, so that no generator, mode, or profile of the program changes.
"""

import ctypes
import sys
import zlib
from collections.abc import Mapping

_LEAVES = 4
_WHOLE = 1 << 14  # bytes of a row that are read; of a longer one four parts
_OF_NUMPY = "biufcSUM"  # kinds of arrays whose memory holds their values


def gradients_enabled():
    """Whether the program records gradients now."""
    return bool(sys.modules["torch"].is_grad_enabled())


class Contents:
    """The checksums of the wanted samples of a pass.

    Args:
        wanted: By index, the number of a sample.
    """

    _MOST = 24

    def __init__(self, wanted):
        self._wanted = wanted
        self._keys = frozenset(wanted)
        self.values = {}

    def look(self, indices, batch, single):
        """Take note of the wanted samples in a batch, which has these indices."""
        try:
            if self._keys.isdisjoint(indices):
                return
        except TypeError:  # a key that has no hash
            return
        for at, index in enumerate(indices):
            number = self._wanted.get(index)
            if number is None or number in self.values or len(self.values) >= self._MOST:
                continue
            sums = of_sample(batch) if single else of_row(leaves(batch), at, len(indices))
            if sums:
                self.values[number] = "".join("%06x" % (each & 0xFFFFFF) for each in sums)


def leaves(batch, found=None):
    """The tensors, arrays, texts, and numbers in a batch, in order. Lists of plain values are one leaf."""
    found = [] if found is None else found
    if isinstance(batch, Mapping):
        for each in batch.values():
            leaves(each, found)
    elif isinstance(batch, (list, tuple)) and not (batch and isinstance(batch[0], (str, bytes, int, float))):
        for each in batch:
            leaves(each, found)
    else:
        found.append(batch)
    return found


def of_row(found, at, rows):
    """The checksums of one row of a batch's leaves; empty where no leaf has so many rows."""
    sums = (_of_leaf(each, at) for each in found if rows_of(each) == rows)
    return [each for each in sums if each is not None][:_LEAVES]


def of_sample(sample):
    """The checksums of a sample that is in no batch."""
    sums = (_of_leaf(each, None) for each in leaves(sample))
    return [each for each in sums if each is not None][:_LEAVES]


def rows_of(leaf):
    """The number of rows of a leaf; None where it has none."""
    if isinstance(leaf, (list, tuple)):
        return len(leaf)
    shape = getattr(leaf, "shape", None)
    return int(shape[0]) if isinstance(shape, tuple) and shape else None


def _of_leaf(leaf, at):
    """The checksum of a row of a leaf, or of all of it; None for what cannot be read."""
    kind = type(leaf)
    if isinstance(leaf, (list, tuple)):
        return _of_plain(leaf if at is None else leaf[at])
    if kind.__module__ == "torch" and kind.__name__ == "Tensor":
        return _of_tensor(leaf, at)
    if kind.__module__ == "numpy":
        if kind.__name__ == "ndarray" and leaf.dtype.kind in _OF_NUMPY:
            return zlib.crc32((leaf if at is None else leaf[at]).tobytes())
        return None if at is not None else _of_plain(leaf.item() if hasattr(leaf, "item") else leaf)
    return _of_plain(leaf) if at is None else None


def _of_plain(value):
    if isinstance(value, (list, tuple)):
        value = [each for each in value if isinstance(each, (str, bytes, int, float))]
    elif not isinstance(value, (str, bytes, int, float)):
        return None
    return zlib.crc32(repr(value).encode(errors="replace"))


def _of_tensor(tensor, at):
    if tensor.device.type != "cpu" or str(tensor.layout) != "torch.strided" or tensor.is_quantized:
        return None
    count, size = tensor.numel(), tensor.element_size()
    if not count:
        return None
    first = tensor.data_ptr()
    if at is None:
        return _of_memory(first, count * size) if tensor.is_contiguous() else None
    row = count // tensor.shape[0]
    if tensor.stride(0) != row and tensor.shape[0] > 1:  # the row does not lie in one piece
        return None
    return _of_memory(first + at * row * size, row * size)


def _of_memory(first, count):
    if count <= _WHOLE:
        return zlib.crc32((ctypes.c_char * count).from_address(first))
    total, part = count, _WHOLE // 4
    for number in range(4):
        begin = first + (count - part) * number // 3
        total = zlib.crc32((ctypes.c_char * part).from_address(begin), total & 0xFFFFFFFF)
    return total
