"""The samples that a sketch is made of: up to 1024 indices, the same wherever the number of samples is the same."""

import functools
import zlib

BITS = 1024
CONTENTS = 48  # of these, samples whose contents are compared


@functools.lru_cache(maxsize=16)
def chosen(length):
    """The indices in order. A larger dataset has one from each of 1024 stretches of equal length, by a checksum."""
    if length <= BITS:
        return list(range(length))
    ends = [length * at // BITS for at in range(BITS + 1)]
    return [begin + zlib.crc32(b"%d" % at) % (ends[at + 1] - begin) for at, begin in enumerate(ends[:-1])]


def of_contents(indices):
    """Those of the chosen indices whose contents are compared."""
    step = max(1, len(indices) // CONTENTS)
    return indices[::step][:CONTENTS]
