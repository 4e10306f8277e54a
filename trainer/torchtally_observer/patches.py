"""The private parts of PyTorch that are used. Where one of them is missing, nothing is observed, and one line says so.

All iterators of DataLoaders are a _BaseDataLoaderIter, those of subclasses too. A pass begins where one asks its
sampler for the first time, and ends where one with persistent workers is reset, or has no more. Only what `__next__`
has returned counts: workers fetch ahead. `__init__` stays as it is: its warnings name the line that calls it.
"""

import sys
from collections import deque

from torchtally_observer import process, signs

_FRAMES = 12  # between a resumed iterator's `__init__` and what it draws
_NOT_YET = object()  # of an iterator that has asked for nothing


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
    observed = process.current()
    observed.steps += 1
    if observed.off:
        return
    if not observed.armed:
        observed.begins()
    if observed.ended is not None:
        observed.goes_on()
    signs.taken()


def _observe_loaders(module):
    base = module._BaseDataLoaderIter
    own_reset, own_index, own_next = base._reset, base._next_index, base.__next__

    def _reset(self, loader, first_iter=False, *args, **kwargs):
        if not first_iter:
            _end(self, "left")
            self._torchtally_pass = _NOT_YET
        own_reset(self, loader, first_iter, *args, **kwargs)

    def _next_index(self):
        handing = self._torchtally_pass
        if handing is _NOT_YET:
            handing = self._torchtally_pass = process.guarded(_begun, self)
        index = own_index(self)
        if handing is not None:
            handing.asked.append(index)
        return index

    def __next__(self):
        try:
            batch = own_next(self)
        except StopIteration:
            _end(self, "whole")
            raise
        except Exception:
            handing = self._torchtally_pass
            if handing is not None and handing is not _NOT_YET:
                process.guarded(handing.failed, self)
            raise
        handing = self._torchtally_pass
        if handing is not None and handing is not _NOT_YET:
            try:
                handing.received(self, batch)
            except Exception as error:  # the program continues, whatever it is
                process.current().turn_off(error)
        return batch

    base._torchtally_pass = _NOT_YET
    base._reset, base._next_index, base.__next__ = _reset, _next_index, __next__


def _begun(iterator):
    if _in_worker():
        return None
    begun = process.current().begin(Source(iterator))
    process.current().when_collected(iterator, begun)
    return Handing(begun, getattr(iterator, "_in_order", True))


def _end(iterator, how):
    handing = iterator._torchtally_pass
    if handing is not None and handing is not _NOT_YET:
        iterator._torchtally_pass = None
        process.guarded(handing.end, how)


def _in_worker():
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None


class Source:
    """What an iterator knows of its loader."""

    def __init__(self, iterator):
        self.dataset, self.sampler = iterator._dataset, iterator._index_sampler
        self.workers, self.batched = iterator._num_workers, iterator._auto_collation
        self.persistent = getattr(iterator, "_persistent_workers", False)


class Handing:
    """Pairs the batches of an iterator with the indices that it has asked for."""

    def __init__(self, observed, in_order):
        self.asked = deque()
        self._pass = observed
        self._in_order = in_order
        self._unordered = {}  # by the number of a request
        self._requests = 0
        self._replayed = None  # batches that a resumed iterator draws by itself, before the loop has it
        self._process = process.current()

    def received(self, iterator, batch):
        """A batch has come out of `__next__`."""
        if self._process.off:  # as in a fork that continues with the loop of its parent
            return
        index = self.asked.popleft() if self._in_order and self.asked else self._unordered_index(iterator)
        if self._replayed is not False and self._replays(iterator):
            return
        signs.taken()
        self._pass.received(index, batch)

    def failed(self, iterator):
        """`__next__` has raised an error of the dataset. A loop may catch it, and ask for the next batch."""
        if not self._in_order:
            self._unordered_index(iterator)
            return
        waiting = len(getattr(iterator, "_task_info", ()))  # which has all requests but the one that failed
        while len(self.asked) > waiting:
            self.asked.popleft()

    def end(self, how):
        """The pass is over."""
        process.current().end(self._pass, how)  # in a fork, this does nothing

    def _unordered_index(self, iterator):
        if self._in_order:
            return None
        while self.asked:
            self._unordered[self._requests] = self.asked.popleft()
            self._requests += 1
        waiting = iterator._task_info  # by the same numbers; what has been returned is not in it
        done = [number for number in self._unordered if number not in waiting]
        return self._unordered.pop(done[0]) if done else None

    def _replays(self, iterator):
        """Whether a resumed iterator is still in its own `__init__`, where it drops what was handed out before."""
        if self._replayed is None:
            self._pass.resumed = iterator._num_yielded - 1  # an iterator that continues where a state was saved
            self._replayed = self._pass.resumed > 0
        frame = sys._getframe(2) if self._replayed else None
        for _ in range(_FRAMES):
            if frame is None:
                break
            if frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is iterator:
                return True
            frame = frame.f_back
        self._replayed = False
        return False
