"""Observes what DataLoaders hand out to a training that knows nothing of it, without a changed line.

It needs Python 3.8 and its standard library alone, so that any image can carry it. `start` is what a Python runs first;
nothing else is imported before PyTorch is.

start       decides by the environment, and waits until PyTorch is imported
patches     the private parts of PyTorch that are used
process     the passes of this process, their number, and its end
passes      one pass: what a loader has handed out between iter() and its end
loaders     what a loader, its sampler, and its dataset say of themselves
indices     which samples: sums, order, and a sketch, of constant size
sketch      the samples that a sketch is made of
contents    what a few samples hold, as checksums
streams     rows without indices, as their smallest checksums
signs       that a rank continues, and where it stands, for `torchtally run`
ranks       who this process is among the ranks
line        the lines

sitecustomize starts it where this folder is on PYTHONPATH: in an image that has nothing of torchtally.

docs/reference/observation.md describes the lines.
"""
