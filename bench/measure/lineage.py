"""Which samples are in the weights that a training ended with: from the notes of bench/peers/watched.py.

Each step leads from weights to weights. The steps of the last weights are therefore a chain that ends at the first
ones, and what another start has trained in vain is not in it.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any


def weights(notes: Path) -> list[str]:
    """The hash of the weights that each rank ended with."""
    return [steps[-1]["after"] for steps in _of_ranks(notes)]


def length(notes: Path) -> int:
    """How many steps rank 0 has made in all starts."""
    return len(_of_ranks(notes)[0])


def in_weights(notes: Path) -> Counter[str]:
    """How often each sample is in the weights that the ranks ended with.

    Raises:
        ValueError: The steps are no chain, such as after a restart from weights that no step has made.
    """
    return sum((_in_chain(steps) for steps in _of_ranks(notes)), Counter[str]())


def lost_and_duplicated(found: Counter[str], planned: Counter[str]) -> tuple[int, int]:
    """How many samples are there too seldom, and too often."""
    return (planned - found).total(), (found - planned).total()


def _of_ranks(notes: Path) -> list[list[dict[str, Any]]]:
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(notes.glob("rank-*.jsonl"))]


def _in_chain(steps: list[dict[str, Any]]) -> Counter[str]:
    leading_to: dict[str, dict[str, Any]] = {}
    for step in steps:
        if step["after"] == steps[0]["before"]:
            raise ValueError(f"the first weights come back: {step['after']}")
        if leading_to.setdefault(step["after"], step) != step:
            raise ValueError(f"two different steps lead to the weights {step['after']}")
    found, reached = Counter[str](), steps[-1]["after"]
    while reached in leading_to:  # each step is taken out, so a circle ends as well
        step = leading_to.pop(reached)
        found.update(step["samples"])
        reached = step["before"]
    if reached != steps[0]["before"]:
        raise ValueError(f"no step leads to the weights {reached}, and they are not the first")
    return found
