"""What a sample holds, as one checksum for each of its leaves: a label stays where an image is augmented.

Memory is read where it is: no operation of PyTorch runs, so that no generator, mode, or profile of the program changes.
"""

import ctypes
import weakref
import zlib
from collections import UserDict

_LEAVES = 4
_WHOLE = 1 << 12  # bytes of a row that are read; of a longer one four parts
_PLAIN = (str, bytes, int, float)
_OF_NUMPY = "biufcSUM"  # kinds of arrays whose memory holds their values


class Contents:
    """The checksums of the wanted samples of a pass.

    Args:
        wanted: By index, the number of a sample.
    """

    _MOST = 24

    def __init__(self, wanted):
        self._wanted = wanted
        self.keys = frozenset(wanted)  # empty when there are enough
        self.values = {}

    def look(self, indices, batch, single):
        """Take note of the wanted samples in a batch, which has these indices."""
        for at, index in enumerate(indices):
            number = self._wanted.get(index)
            if number is None or number in self.values or len(self.values) >= self._MOST:
                continue
            sums = of_sample(batch) if single else of_row(leaves(batch), at, len(indices))
            if sums:
                self.values[number] = "".join("%06x" % (each & 0xFFFFFF) for each in sums)
        if len(self.values) >= self._MOST:
            self.keys = frozenset()


def leaves(batch, found=None):
    """The tensors, arrays, texts, and numbers in a batch, in order. Lists of plain values are one leaf."""
    found = [] if found is None else found
    named = as_dict(batch)
    if named is not None:
        for each in named.values():
            leaves(each, found)
    elif isinstance(batch, (list, tuple)) and not (batch and isinstance(batch[0], (str, bytes, int, float))):
        for each in batch:
            leaves(each, found)
    else:
        found.append(batch)
    return found


def reference(batch):
    """A weak reference to the first tensor or array of a batch; None where it has none."""
    return next((weakref.ref(each) for each in leaves(batch) if type(each).__weakrefoffset__), None)


def as_dict(batch):
    """The dict in a batch, None where there is none. No code of the program runs."""
    if isinstance(batch, UserDict):  # as of Hugging Face's tokenizers
        batch = vars(batch).get("data")
    return batch if isinstance(batch, dict) and type(batch).values is dict.values else None


def of_row(found, at, rows):
    """The checksums of one row of a batch's leaves; empty where no leaf has so many rows."""
    return [read(at) for read in readers(found, rows)][:_LEAVES]


def readers(found, rows):
    """For each leaf with so many rows that can be read, what returns the checksum of a row."""
    known = (_reader(each) for each in found if rows_of(each) == rows)
    return [each for each in known if each is not None]


def of_sample(sample):
    """The checksums of a sample that is in no batch."""
    sums = (_of_leaf(each) for each in leaves(sample))
    return [each for each in sums if each is not None][:_LEAVES]


def rows_of(leaf):
    """The number of rows of a leaf; None where it has none."""
    if isinstance(leaf, (list, tuple)):
        return len(leaf)
    shape = getattr(leaf, "shape", None)
    return int(shape[0]) if isinstance(shape, tuple) and shape else None


def _reader(leaf):
    """What returns the checksum of a row of this leaf; None for what cannot be read."""
    if isinstance(leaf, (list, tuple)):
        if all(isinstance(each, _PLAIN) for each in leaf):
            return lambda at: _of_plain(leaf[at])
        return None
    if _is_array(leaf):
        return lambda at: zlib.crc32(leaf[at].tobytes())
    memory = _memory(leaf)
    if memory is None:
        return None
    row = len(memory) // leaf.shape[0]
    if row <= _WHOLE:
        return lambda at: zlib.crc32(memory[at * row : at * row + row])
    return lambda at: _of_parts(memory[at * row : at * row + row])


def _of_leaf(leaf):
    """The checksum of all of a leaf; None for what cannot be read."""
    if isinstance(leaf, _PLAIN):
        return _of_plain(leaf)
    if isinstance(leaf, (list, tuple)):
        return _of_plain(leaf) if all(isinstance(each, _PLAIN) for each in leaf) else None
    if _is_array(leaf):
        return zlib.crc32(leaf.tobytes())
    memory = _memory(leaf)
    if memory is None:
        return None
    return zlib.crc32(memory) if len(memory) <= _WHOLE else _of_parts(memory)


def _is_array(leaf):
    kind = type(leaf)
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray" and leaf.dtype.kind in _OF_NUMPY


def _of_plain(value):
    return zlib.crc32(repr(value).encode(errors="replace"))


def _memory(tensor):
    """The memory of a tensor that lies in one piece on the CPU, else None."""
    kind = type(tensor)
    if kind.__module__ != "torch" or kind.__name__ != "Tensor" or tensor.device.type != "cpu":
        return None
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized or not tensor.numel() or not tensor.is_contiguous():
        return None
    return memoryview((ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr()))


def _of_parts(memory):
    """The checksum of four parts of a long row."""
    total, part = 0, _WHOLE // 4
    for number in range(4):
        begin = (len(memory) - part) * number // 3
        total = zlib.crc32(memory[begin : begin + part], total)
    return total
