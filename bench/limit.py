"""What no training by these products can beat on this machine, from its parts as bench.measure.limits has them."""

from dataclasses import dataclass

from bench.model import BATCH, GRADIENT
from bench.results import Results


@dataclass(frozen=True)
class Parts:
    """Under which names a task's parts are measured, and the bytes of its gradient."""

    operations: str
    products: str
    copied: str
    gradient: int


PARTS = {
    "fashion-mnist": Parts(
        "matrix products of a step, one core",
        "samples by these products alone, one core",
        "the gradient's bytes copied, one core",
        GRADIENT,
    ),
    **{
        task: Parts(
            f"products of a step of {task}, one core",
            f"samples by the products of {task} alone, one core",
            f"the gradient's bytes of {task} copied, one core",
            gradient,
        )
        for task, gradient in {"mnist-cnn": 4 * 21_840, "keras-mnist": 4 * 49_242}.items()
    },
}


def limit(results: Results, task: str, world: int) -> float | None:
    """Samples a second that the products and the gradient's bytes alone would allow.

    The ranks share the cores. Each gives the others their chunks of its gradient and takes theirs of the sum: an
    all-reduce moves no less (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009), here by copying.
    """
    parts = PARTS[task]
    alone = results.one("limit", what=parts.products)
    copied = results.one("limit", what=parts.copied)
    if not (alone and copied):
        return None
    seconds = BATCH / max(alone.values) + 2 * (world - 1) / world * parts.gradient / (max(copied.values) * 1e9)
    return world * BATCH / (seconds * max(1.0, world / int(results.machine["cores"])))
