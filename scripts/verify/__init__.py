"""The parts of verify_shards.

log            finds tally lines and last lines in logs
wrapped        extracts a program's lines from the formats of container runtimes and log collectors
cluster        fetches the logs of a job's pods (job_kinds: PyTorchJob and TrainJob)
expected       the samples that each rank should have consumed
lineage        which attempts of a run its final weights come from
growth         gives the newest plan to lines of earlier attempts that planned fewer epochs
verdict        judges each run by all of these checks:
line_check     the lines, against their own fields, each other and the plan
digest_check   the lost and doubled samples of a line, against its digest (diagnosis: in words)
summary_check  the last line of the run, against its own fields and the other lines
report         the verdicts as a table or JSON (phrasing: the wording of its sentences)
console        the start and the end of a command-line program
"""

import importlib.util
import sys
from pathlib import Path

if not importlib.util.find_spec("torchtally"):  # not installed: take it from this checkout
    sys.path.append(str(Path(__file__).resolve().parents[2] / "trainer"))
