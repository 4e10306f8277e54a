"""What torchtally is compared with."""

from collections.abc import Mapping

from bench.results import Results, Series
from bench.spread import spread

TOOLS = {"torchtally": "torchtally", "blog": "the blog's loop", "accelerate": "Accelerate", "lightning": "Lightning"}


def peers(results: Results, case: Mapping[str, str | int]) -> dict[str, Series]:
    """The throughput of the other tools in this case, if measured."""
    found = {tool: results.one("throughput", **case, tool=tool) for tool in TOOLS if tool != "torchtally"}
    return {tool: series for tool, series in found.items() if series}


def best(known: Mapping[str, Series]) -> str:
    """The fastest of `peers`."""
    return max(known, key=lambda tool: spread(known[tool].values).median)
