"""The upper bound of a training's throughput on this machine, from the measurements of bench.measure.limits."""

from dataclasses import dataclass

from bench.results import Results

BATCH = 32  # samples of a rank and step
GRADIENT = 4 * (784 * 512 + 512 * 512 + 512 * 10 + 512 + 512 + 10)  # bytes, of the perceptron on Fashion-MNIST


@dataclass(frozen=True)
class Parts:
    """The names under which a task's parts are measured, and the size of its gradient in bytes."""

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
# Tasks whose limit is the model's forward and backward pass alone, on one core, and what this is measured as.
PASSES = {
    task: f"forward and backward pass of {name}, one core"
    for task, name in {
        "gpt-ddp": "gpt",
        "gpt-fsdp2": "gpt",
        "image-folder-64": "ResNet-18 with 64 x 64 pixels",
        "image-folder-224": "ResNet-18 with 224 x 224 pixels",
    }.items()
}


def limit(results: Results, task: str, world: int) -> float | None:
    """Samples, or tokens, per second if a step made only its products and the copies of its all-reduce, or its passes.

    The ranks share the cores. An all-reduce moves at least 2 (w - 1) / w of the gradient for each rank (Patarasuk and
    Yuan, "Bandwidth optimal all-reduce algorithms", 2009), here by copying.
    """
    if task in PASSES:
        passes = results.one("limit", what=PASSES[task])
        return max(passes.values) * min(world, int(results.machine["cores"])) if passes else None
    parts = PARTS[task]
    alone = results.one("limit", what=parts.products)
    copied = results.one("limit", what=parts.copied)
    if not (alone and copied):
        return None
    seconds = BATCH / max(alone.values) + 2 * (world - 1) / world * parts.gradient / (max(copied.values) * 1e9)
    return world * BATCH / (seconds * max(1.0, world / int(results.machine["cores"])))
