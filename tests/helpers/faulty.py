"""A rank of a real task whose sampler has a fault: `python faulty.py FAULT TASK [options]`, FAULT out of toy.py."""

import functools
import sys

import toy

from torchtally.commands import train
from torchtally.pod import failure
from torchtally.training import loop

fault = getattr(toy, sys.argv.pop(1))
loop.Loop = functools.partial(loop.Loop, batches=fault)
failure.exit_rank(train.main())  # as a rank does it
