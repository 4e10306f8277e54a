"""Which samples a pass has handed out, by the indices of the dataset below all Subsets.

The number of indices and the sums of their powers 1 to 3 add up over ranks, and have a closed form for the indices 0 to
N - 1: "each once" can be checked without knowing the order. One bit for each sample of a sketch tells the rest.
"""

import base64
import hashlib
from array import array

from torchtally_observer import contents, sketch
from torchtally_observer.powers import Sums

_BLOCK = 1 << 14  # indices at a time
_HEAD = 256  # indices at the beginning whose order has a hash of its own
_MOST_HELD = 1 << 23  # of a larger Subset, indices are those of the Subset itself


def as_list(index):
    """The indices of a batch as a list."""
    if isinstance(index, list):
        return index
    if hasattr(index, "tolist"):
        index = index.tolist()
    return list(index) if isinstance(index, (list, tuple)) else [index]


class Bits:
    """One bit for each sample of a sketch."""

    def __init__(self, count):
        self.values = bytearray(count)

    def __str__(self):
        """Base64, the first sample's bit first."""
        packed = bytearray((len(self.values) + 7) // 8)
        for at, bit in enumerate(self.values):
            if bit:
                packed[at >> 3] |= 128 >> (at & 7)
        return base64.b64encode(bytes(packed)).decode().rstrip("=")


class Indices:
    """The indices of one pass."""

    def __init__(self, base):
        self._base = base
        if base.held is not None and len(base.held) > _MOST_HELD:
            base.length, base.held = len(base.held), None
        self._sketch = sketch.chosen(base.length or 0)
        self._at = {each: at for at, each in enumerate(self._sketch)}
        self._seen, self._twice = Bits(len(self._sketch)), Bits(len(self._sketch))
        wanted = sketch.of_contents(self._sketch)
        self._contents = contents.Contents(_places(wanted, base.held))
        self._sums, self._order, self._head = Sums(), hashlib.blake2b(digest_size=8), None
        self._buffer = []
        self._keys = base.length is None  # indices that are no numbers, or cannot be compared

    def add(self, index, batch):
        """Add those of a batch, or of one sample where loading is not batched. Returns their number."""
        if type(index) is list:
            found, single = index, False
        elif index is None:
            self._keys = True
            return 0
        else:
            found, single = as_list(index), not isinstance(index, (list, tuple)) and not getattr(index, "shape", ())
        if not self._keys:
            wanted = self._contents.keys
            try:
                if wanted and not wanted.isdisjoint(found):
                    self._contents.look(found, batch, single)
            except Exception:  # an index without a hash, or a batch that cannot be read: the indices still count
                self._contents.keys = frozenset()
            self._buffer += found
            if len(self._buffer) >= _BLOCK:
                self._fold()
        return len(found)

    def _fold(self):
        buffer, self._buffer = self._buffer, []
        held, length = self._base.held, self._base.length
        try:
            if held is not None:
                buffer = [held[each] for each in array("q", buffer)]
            raw = _counted(buffer, length)
        except (TypeError, OverflowError, IndexError):
            self._keys = True  # folds of a cross-validation have keys of their own
            return
        found = raw.tolist()
        self._sums.add(raw)
        if self._head is None:
            self._head = hashlib.blake2b(raw[:_HEAD].tobytes(), digest_size=8).hexdigest()
        self._order.update(raw)
        at, seen, twice = self._at, self._seen.values, self._twice.values
        for each in filter(at.__contains__, found):
            place = at[each]
            twice[place] |= seen[place]
            seen[place] = 1

    def values(self):
        """The fields of the line."""
        if self._buffer:
            self._fold()
        base = {"type": self._base.type, "length": self._base.length, "attributes": self._base.attributes}
        base["rows"] = self._base.rows
        if self._keys:
            return {"base": base, "keys": True}
        values = {
            "base": base,
            "sums": self._sums.texts,
            "order": self._order.hexdigest(),
            "head": self._head,
            "bits": str(self._seen),
        }
        if any(self._twice.values):
            values["twice"] = str(self._twice)
        if self._base.held is not None:
            values["holds"] = self._held()
        values["contents"] = self._contents.values
        return values

    def _held(self):
        sums, bits = Sums(), Bits(len(self._sketch))
        held = _counted(self._base.held, self._base.length)
        sums.add(held)
        for each in held:
            if each in self._at:
                bits.values[self._at[each]] = 1
        return {"samples": sums.values[0], "sums": sums.texts, "bits": str(bits)}


def _counted(indices, length):
    """Indices of any integer type as they count: those below 0 from the end."""
    try:
        return array("Q", indices)
    except OverflowError:
        return array("Q", [each + length if each < 0 else each for each in array("q", indices)])


def _places(wanted, held):
    """By index of the dataset: the number of a wanted sample."""
    numbers = {each: number for number, each in enumerate(wanted)}
    if held is None:
        return numbers
    return {place: numbers[each] for place, each in enumerate(held) if each in numbers}
