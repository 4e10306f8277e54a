"""The names of all metrics that pods serve."""

import re

from prometheus_client import CollectorRegistry

from torchtally.accounting.ledger.tally import Run
from torchtally.monitoring.pod_metrics import PodMetrics
from torchtally.monitoring.run_metrics import RunMetrics
from torchtally.observed.line import Handed, Loader, Process
from torchtally.pod.metrics import Observed

RUN = Run(run="a", attempt=0, pod="p", task="toy", plan={"train": 1}, rank=0, world=1, seed=0, data="sha256:1")


class Saves:
    """Checkpoints."""

    interval = saved_at = 0.0


LOADER = Loader(place="train.py:41", type="DataLoader", dataset="Points", length=60, batch=5, workers=0)
LINE = Handed(
    process=Process(pod="p", rank=0, world=1, local=0, groups=(), began=0, pid=1),
    at=0.0,
    loader=LOADER,
    sampler={},
    number=0,
    end="whole",
    batches=12,
    of=12,
    samples=60,
    steps=12,
    gradients=True,
)
REGISTRY = CollectorRegistry()
RunMetrics(RUN, Saves(), REGISTRY)
OBSERVED = Observed()
OBSERVED.add(LINE)
FAMILIES = {
    "pod": [*PodMetrics(RUN, 1.0).collect()],
    "run": [*REGISTRY.collect()],
    "observed": [*OBSERVED.collect()],
}
SERVED = {sample.name for families in FAMILIES.values() for family in families for sample in family.samples}


def asked(text: str) -> set[str]:
    """The metrics of pods that a query names; those with a colon are made by rules."""
    return set(re.findall(r"(?<![:\w])torchtally_\w+", text))
