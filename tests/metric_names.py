"""The names of all metrics that pods serve."""

import re

from torchtally.accounting.tally import Run
from torchtally.monitoring.pod_metrics import PodMetrics
from torchtally.monitoring.run_metrics import RunMetrics

RUN = Run(run="a", attempt=0, pod="p", task="toy", plan={"train": 1}, rank=0, world=1, seed=0, data="sha256:1")


class Saves:
    """Checkpoints."""

    interval = saved_at = 0.0


FAMILIES = {"pod": [*PodMetrics(RUN, 1.0).collect()], "run": [*RunMetrics(RUN, Saves()).collect()]}
SERVED = {sample.name for families in FAMILIES.values() for family in families for sample in family.samples}


def asked(text: str) -> set[str]:
    """The metrics of pods that a query names; those with a colon are made by rules."""
    return set(re.findall(r"(?<![:\w])torchtally_\w+", text))
