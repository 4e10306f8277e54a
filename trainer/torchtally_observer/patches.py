"""The private parts of PyTorch that are used. Where one of them is missing, nothing is observed, and one line says so.

All iterators of DataLoaders are a _BaseDataLoaderIter, those of subclasses too. A pass begins where one is made, and
where one with persistent workers is reset. Only what `__next__` has returned counts: workers fetch ahead.
"""

import os
import sys
from collections import deque

from torchtally_observer import process

_FRAMES = 12  # between a resumed iterator's `__init__` and what it draws
_PASS = "_torchtally_pass"  # of an iterator, beside its own attributes


def install(module):
    """Observe DataLoaders, or the steps of optimizers, from this module of PyTorch on."""
    if module.__name__.endswith("dataloader"):
        _observe_loaders(module)
    else:
        register = getattr(module, "register_optimizer_step_post_hook", None)  # PyTorch 2.0 lacks it
        if register:
            register(_stepped)
            process.counts_steps = True


def _stepped(*_):
    process.current().stepped()


def _observe_loaders(module):
    base = module._BaseDataLoaderIter
    own_init, own_reset, own_index, own_next = base.__init__, base._reset, base._next_index, base.__next__

    def __init__(self, loader, *args, **kwargs):
        own_init(self, loader, *args, **kwargs)
        _begin(self, loader)

    def _reset(self, loader, first_iter=False, *args, **kwargs):
        if not first_iter:
            _begin(self, loader)
        own_reset(self, loader, first_iter, *args, **kwargs)

    def _next_index(self):
        index = own_index(self)
        asked = self.__dict__.get(_PASS)
        if asked is not None:
            asked.asked.append(index)
        return index

    def __next__(self):
        try:
            batch = own_next(self)
        except StopIteration:
            _end(self)
            raise
        seen = self.__dict__.get(_PASS)
        if seen is not None:
            seen.received(self, batch)
        return batch

    base.__init__, base._reset, base._next_index, base.__next__ = __init__, _reset, _next_index, __next__


def _begin(iterator, loader):
    process.guarded(_begun, iterator, loader)


def _begun(iterator, loader):
    before = iterator.__dict__.pop(_PASS, None)
    if before is not None:
        before.end("left")
    if _in_worker():
        return
    observed = process.current().begin(loader)
    if observed is not None:
        observed.unordered = bool(loader.num_workers) and not getattr(loader, "in_order", True)
        iterator.__dict__[_PASS] = Handing(observed)
        process.current().when_collected(iterator, observed)


def _end(iterator):
    seen = iterator.__dict__.pop(_PASS, None)
    if seen is not None:
        seen.end("whole")


def _in_worker():
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None


class Handing:
    """Pairs the batches of an iterator with the indices that it has asked for."""

    def __init__(self, observed):
        self.asked = deque()
        self._pass = observed
        self._unordered = {}  # by the number of a request
        self._requests = 0
        self._replayed = None  # batches that a resumed iterator draws by itself, before the loop has it
        self._pid = os.getpid()

    def received(self, iterator, batch):
        """A batch has come out of `__next__`."""
        process.guarded(self._received, iterator, batch)

    def _received(self, iterator, batch):
        if self._pid != os.getpid():
            return
        index = self._index(iterator)
        if self._replayed is None:
            self._pass.resumed = iterator._num_yielded - 1  # an iterator that goes on where a state was saved
            self._replayed = self._pass.resumed > 0
        if not self._replayed or not self._replays(iterator):
            self._pass.received(index, batch)

    def end(self, how):
        """The pass is over."""
        if self._pid == os.getpid():
            process.current().end(self._pass, how)

    def _index(self, iterator):
        if not self._pass.unordered:
            return self.asked.popleft() if self.asked else None
        while self.asked:
            self._unordered[self._requests] = self.asked.popleft()
            self._requests += 1
        waiting = iterator._task_info  # by the same numbers; what has been returned is not in it
        done = [number for number in self._unordered if number not in waiting]
        return self._unordered.pop(done[0]) if done else None

    def _replays(self, iterator):
        """Whether a resumed iterator is still in its own `__init__`, where it drops what was handed out before."""
        frame = sys._getframe(2)
        for _ in range(_FRAMES):
            if frame is None:
                break
            if frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is iterator:
                return True
            frame = frame.f_back
        self._replayed = False
        return False
