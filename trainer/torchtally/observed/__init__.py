"""Judges what torchtally_observer has seen, from its lines alone. Imports neither torch nor numpy.

torchtally_observer writes the lines, pod/observed_lines.py reads those of a pod, and this judges them.

An observation is no proof: it knows what was handed out to a loop, and neither what the loop did with it nor the plan.

judge            puts all of it together
report           the verdict as a table, sentences, or JSON
line             one line, and what is wrong with it
log              the lines of a log
matching         attempts of a program, and the passes of one loader on all ranks
data             whether ranks have the same data under the same indices
sets             sets of samples, by sums and bits
shares           how many samples of a pass are lost or duplicated: exact, or an estimate with its error
causes           why ranks are handed the wrong samples, as far as samplers tell
training_pass    one pass that trains
uneven_pass      one that does not hand out each sample once
evaluation_pass  one pass that does not train
stream_pass      one pass without indices
across_passes    several passes: their order, what none hands out, restarts, test samples that are trained on
finding          what is found: a fault, a note, or that all is right
"""
