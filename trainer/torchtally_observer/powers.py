"""The sums of the powers 1 to 3 of indices, exactly."""

import sys
from array import array
from operator import mul

_AT_ONCE = 1 << 16  # so that no sum of products of three parts of 16 bits exceeds 64 bits


class Sums:
    """Number of indices, and the sums of their powers 1 to 3."""

    def __init__(self):
        self.values = [0, 0, 0, 0]

    def add(self, indices):
        """Add indices of 0 or more."""
        indices = array("Q", indices)
        numpy = sys.modules.get("numpy")  # if the program has it: a tenth of the time
        sums = _of_list if numpy is None else _of_numpy
        for begin in range(0, len(indices), _AT_ONCE):
            part = indices[begin : begin + _AT_ONCE]
            for power, each in enumerate((len(part), *sums(part, numpy))):
                self.values[power] += each

    @property
    def texts(self):
        """As decimal texts: they exceed what a program's float holds."""
        return [str(each) for each in self.values[1:]]


def _of_list(indices, _numpy):
    found = indices.tolist()
    squares = list(map(mul, found, found))
    return sum(found), sum(squares), sum(map(mul, found, squares))


def _of_numpy(indices, numpy):
    values = numpy.frombuffer(indices, numpy.uint64)
    if int(values.max()) >> 32:
        return _of_list(indices, numpy)
    high, low = values >> 16, values & 0xFFFF

    def total(*factors):
        product = factors[0]
        for each in factors[1:]:
            product = product * each
        return int(product.sum())

    squares = (total(high, high) << 32) + (total(high, low) << 17) + total(low, low)
    cubes = (total(high, high, high) << 48) + 3 * (total(high, high, low) << 32)
    return total(values), squares, cubes + 3 * (total(high, low, low) << 16) + total(low, low, low)
