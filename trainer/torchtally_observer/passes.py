"""One pass of a loader: from iter() to its end. Its size does not depend on the number of samples."""

import math
import sys
import time

from torchtally_observer import contents, loaders
from torchtally_observer.indices import Indices, as_list
from torchtally_observer.streams import Stream

_REPORTS = 10  # of a long pass, while it is open
_LONG = 10.0  # seconds between two


class Pass:
    """What one pass has handed out so far.

    Args:
        source: What is known of its loader.
        process: What is observed in this process.
    """

    def __init__(self, source, process):
        self.loader = loaders.described(source)
        self.loader_key = tuple(sorted((name, str(value)) for name, value in self.loader.items()))
        self.number = 0
        self._process = process
        self.left_behind = False  # it has ended as an evaluation, and no step after it uses its batches
        self.gradients = None  # whether they were on, for its newest batch, if no optimizer has stepped since
        self._are_on = sys.modules["torch"].is_grad_enabled
        self.batches = self.samples = 0
        self.steps = self.beside = 0  # of optimizers, after its batches, and after those of a loader beside it
        self.resumed = 0  # batches that another iterator had handed out before
        self.watched = False
        self._add, self._due = _number, math.inf
        self.said = None  # the fields of its line
        self.collected = None  # what ends the pass with its iterator

    def watch(self, source):
        """Look at the samples as well: the pass will have a line of its own."""
        self.watched = True
        self._sampler = loaders.sampler(source)
        self._length = loaders.batches(source)
        if loaders.is_stream(source.dataset):
            self._samples = Stream(single=not source.batched)
        else:
            self._samples = Indices(loaders.chain(source.dataset))
        self._add = self._samples.add
        self._reported = time.monotonic()
        self._due = self._every = max((self._length or 0) // _REPORTS, 1)

    def forget(self):
        """Let go of what the line has said."""
        self._samples, self._add = None, _number

    def received(self, index, batch):
        """The loop has received a batch, whose samples have this index or these indices."""
        process = self._process
        if process.newest is not self:
            process.turns_to(self)
        elif process.others:
            process.settle()
        else:  # as settle() does for one pass, and sooner
            self.steps += process.steps
            process.steps = 0
        self.gradients = self._are_on()
        if not self.batches:
            self._first = contents.reference(batch)
        self.batches += 1
        self.samples += self._add(index, batch)
        if self.batches >= self._due:
            self._due += self._every
            now = time.monotonic()
            if now - self._reported >= _LONG:
                self._reported = now
                self._process.report_open(self)

    def is_kept(self):
        """Whether the program still has its first batch, as in a list of all."""
        return self._first is not None and self._first() is not None

    def values(self, how, counts_steps):
        """The fields of the pass's line."""
        if how == "left" and self._length is not None and self.batches >= self._length:
            how = "whole"  # a library that knows the length does not ask for what comes after the last batch
        values = {
            "loader": self.loader,
            "sampler": self._sampler,
            "pass": self.number,
            "end": how,
            "batches": self.batches,
            "of": self._length,
            "samples": self.samples,
            "resumed": self.resumed or loaders.skipped(self._sampler) or None,
            "steps": self.steps if counts_steps else None,
            "beside": self.beside or None,
            "gradients": self._are_on(),
        }
        values.update(self._samples.values())
        return values


def _number(index, _batch):
    return 0 if index is None else len(as_list(index))
