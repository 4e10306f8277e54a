"""The passes of this process: which are open, how many lines they may have, and what happens at its end."""

import atexit
import multiprocessing.util
import os
import time
import weakref

from torchtally_observer import line, ranks, signs
from torchtally_observer.passes import Pass

_LINES_OF_A_LOADER = 256  # passes beyond are summed up
_LINES = 2048  # of all loaders
_LOADERS = 64  # that are summed up
counts_steps = False  # whether PyTorch tells of the steps of optimizers


class Process:
    """What is observed in one process. A fork begins anew: what was open belongs to its parent."""

    def __init__(self):
        self.began = int(time.time() * 1000)
        self.newest = None  # the pass that handed out the newest batch: an optimizer that steps has used it
        self.steps = 0  # of optimizers since the newest batch
        self.others = {}  # by pass: whether gradients were on, for a batch of it since the last step, and before newest
        self._held = None  # a pass whose iterator is gone before an optimizer could use its batch
        self.ended = None  # the newest pass, if it has ended, and gradients were off
        self._used, self._unused = False, 0  # whether steps have used batches, and the number of those that have not
        self.off = False  # nothing more is observed
        self._open = {}
        self._passes = {}  # by loader: how many have begun
        self._sums = {}  # by loader: passes, batches, and samples that have no line
        self._lines = 0
        self.armed = False

    def begin(self, source):
        """A pass of a loader begins. Returns it."""
        self.arm()
        ranks.look()
        begun = Pass(source, self)
        key = begun.loader_key
        begun.number = self._passes.get(key, 0)
        self._passes[key] = begun.number + 1
        if begun.number < _LINES_OF_A_LOADER and self._lines + len(self._open) < _LINES:
            begun.watch(source)
        self._open[id(begun)] = begun
        return begun

    def when_collected(self, iterator, begun):
        """End the pass with its iterator: a loop that is left by `break` keeps no other trace."""
        begun.collected = weakref.finalize(iterator, _collected, begun)
        begun.collected.atexit = False

    def end(self, ended, how):
        """A pass is over. The second call does nothing."""
        if self._open.pop(id(ended), None) is None:
            return
        if ended.collected is not None:
            ended.collected.detach()  # it would keep the pass as long as the iterator
        self.settle()
        if self.newest is ended and ended.gradients is False:
            self.ended = ended
        if how == "left" and self.newest is ended and ended.gradients is not None:
            self._release()
            self._held = ended  # as of next(iter(loader)), whose batch the next step uses
            return
        ended.gradients = None
        self.others.pop(ended, None)
        self.guarded(self._say, ended, how)

    def begins(self):
        """An optimizer steps before any pass: a rank that draws no batch is none that is missing."""
        self.guarded(ranks.look)
        self.arm()

    def goes_on(self):
        """An optimizer steps after an evaluation, with batches of no loader unless the program keeps those of it."""
        ended, self.ended = self.ended, None
        ended.left_behind = not ended.is_kept()

    def _release(self):
        held, self._held = self._held, None
        if held is not None:
            held.gradients = None
            self.guarded(self._say, held, "left")

    def turns_to(self, handing):
        """A pass hands out a batch after one of another pass."""
        self.settle()
        self._release()
        newest = self.newest
        if newest is None:
            self._unused += self.steps  # before any batch
            self.steps = 0
        else:
            self._say_again()
            if newest.gradients is not None:
                self.others[newest] = newest.gradients
        self.others.pop(handing, None)
        self.newest = handing

    def settle(self):
        """Count the steps of optimizers since the newest batch for the passes whose batches they have used."""
        newest, steps = self.newest, self.steps
        if newest is None or not steps:
            return
        self.steps = 0
        used = [each for each, gradients in self.others.items() if gradients]
        if newest.gradients or not (used or newest.left_behind):
            used.append(newest)
        if used:
            used[-1].steps += steps  # not those of an evaluation between a batch and its step
        else:
            self._unused += steps
        for each in used[:-1]:  # two loaders that are read in turn, as of a GAN
            each.beside += 1
        newest.gradients = None
        self.others.clear()
        self._release()

    def _say_again(self):
        """Say a pass again whose batches optimizers have used after its end, as those of a list."""
        newest = self.newest
        if newest is not None and newest.said and newest.steps and newest.said.get("steps") == 0:
            newest.said["steps"] = newest.steps
            self._used = True
            self.guarded(line.write, self._fields(**newest.said))

    def guarded(self, act, *values):
        """Call `act`. If it raises, nothing more is observed here, and the program continues."""
        if self.off:
            return None
        try:
            return act(*values)
        except Exception as error:
            self.turn_off(error)
            return None

    def leave(self):
        """Observe nothing more, and say nothing: an account proves what it hands out."""
        self.off = True
        self._open.clear()

    def turn_off(self, error):
        """Observe nothing more, and say so once, by the error's type and place alone."""
        if not self.off:
            self.off = True
            self._open.clear()
            signs.unseen()
            line.write(self._fields(off=_told(error)))

    def _say(self, ended, how):
        ranks.look()
        self._used = self._used or ended.steps > 0
        if not ended.watched:
            sums = self._sums
            if ended.loader_key in sums or len(sums) < _LOADERS:
                total = sums.setdefault(ended.loader_key, [ended.loader, 0, 0, 0])
                total[1] += 1
                total[2] += ended.batches
                total[3] += ended.samples
            return
        if ended.batches or how == "whole":
            self._lines += 1
            ended.said = ended.values(how, counts_steps)
            ended.forget()
            line.write(self._fields(**ended.said))

    def report_open(self, observed):
        """Say what a long pass has handed out so far: a kill leaves no other trace."""
        line.write(self._fields(**observed.values("open", counts_steps)))

    def _fields(self, **values):
        return {**ranks.fields(), "began": self.began, "pid": os.getpid(), "at": round(time.time(), 3), **values}

    def arm(self):
        """Say at the end of this process what is open then."""
        if not self.armed:
            self.armed = True
            signs.give()
            atexit.register(self.finish)
            # Children of multiprocessing end without atexit.
            multiprocessing.util.Finalize(None, self.finish, exitpriority=1)

    def finish(self):
        """The process ends: say what is still open. The second call does nothing."""
        if self.off:  # as in a fork, which inherits what its parent has registered
            return
        self.settle()
        for each in list(self._open.values()):
            self.end(each, "left")
        self._release()
        self._say_again()
        self.guarded(self._summarize)

    def _summarize(self):
        for loader, passes, batches, samples in self._sums.values():
            line.write(self._fields(loader=loader, passes=passes, batches=batches, samples=samples))
        self._sums = {}
        if (steps := self._unused + self.steps) and not self._used:
            line.write(self._fields(steps=steps, unseen="no DataLoader"))
        self.steps = self._unused = 0


def _collected(begun):
    _current.end(begun, "left")


def _told(error):
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f" in {os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}"
    return type(error).__name__ + where


_current = Process()


def current():
    """The observation of this process."""
    return _current


def guarded(act, *values):
    """See Process.guarded."""
    return _current.guarded(act, *values)


def _forked():
    global _current
    _current.off = True
    _current = Process()
    ranks.forget()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)
