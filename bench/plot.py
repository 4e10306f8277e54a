"""The plot of a file of results: throughput of each tool, with its range over the rounds."""

from pathlib import Path

import matplotlib
from matplotlib import pyplot

from bench.limit import limit
from bench.results import Results
from bench.spread import spread
from bench.table import TOOLS

_TASK = "fashion-mnist"


def draw(results: Results, path: Path) -> None:
    """Write the plot as SVG, byte for byte the same for the same results."""
    matplotlib.rcParams.update({"svg.hashsalt": "torchtally", "svg.fonttype": "none", "font.size": 9})
    worlds = sorted({int(each.case["world"]) for each in results.of("throughput", task=_TASK)})
    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    width = 0.8 / len(TOOLS)
    for at, (tool, name) in enumerate(TOOLS.items()):
        found = [
            (place, results.one("throughput", task=_TASK, world=world, tool=tool)) for place, world in enumerate(worlds)
        ]
        known = [(place, spread(series.values)) for place, series in found if series]
        heights = [each.median for _, each in known]
        reach = [[each.median - each.low for _, each in known], [each.high - each.median for _, each in known]]
        places = [place + (at - (len(TOOLS) - 1) / 2) * width for place, _ in known]
        axes.bar(places, heights, width, yerr=reach, label=name, error_kw={"elinewidth": 0.8, "capsize": 2})
    for place, world in enumerate(worlds):
        if most := limit(results, _TASK, world):
            axes.hlines(most, place - 0.4, place + 0.4, "grey", "dotted", label="" if place else "limit")
    axes.set_xticks(range(len(worlds)), [f"{world} rank{'s' * (world > 1)}" for world in worlds])
    axes.set_ylabel("samples per second")
    axes.set_title("Fashion-MNIST, 784-512-512-10, batch 32 per rank: medians, minimum and maximum", fontsize=9)
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
