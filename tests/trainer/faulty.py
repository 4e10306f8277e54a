"""A rank of a real task whose sampler has a fault: `python faulty.py FAULT TASK [options]`, FAULT out of toy.py."""

import functools
import sys

import toy

from torchtally import failure, loop, worker

fault = getattr(toy, sys.argv.pop(1))
loop.fit = functools.partial(loop.fit, batches=fault)
failure.leave(worker.main())  # as a rank does it
