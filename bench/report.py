"""Writes the table of goals from a file of results: `python -m bench.report [FILE.json]`."""

import sys
from pathlib import Path

from bench import goals, results
from bench.results import Results

PAGE = Path("bench/results/goals.md")
_BEGIN, _END = "<!-- python -m bench.report writes this: -->\n", "<!-- until here -->\n"


def write(found: Results) -> None:
    PAGE.write_text(with_goals(PAGE.read_text(), found, results.newest_on_gpu()))


def with_goals(page: str, found: Results, on_gpu: Results | None) -> str:
    """The page with its table of goals replaced."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{PAGE} must have the lines {_BEGIN.strip()} and {_END.strip()} around the goals")
    below = [conditions(found)]
    if on_gpu:
        below.append(f"On a GPU: {conditions(on_gpu)}")
    text = "\n\n".join([goals.text(found, on_gpu), *below])
    return f"{before}{begin}\n{text}\n\n{end}{after}"


def conditions(found: Results) -> str:
    """The conditions of the measurements, in one line."""
    machine, versions = found.machine, found.versions
    loads = [load for each in found.series for load in each.loads]
    rounds = len({number for each in found.series for number in each.rounds})
    gpu = f"{machine['gpu']} ({machine['gpu_memory_gb']} GB), " if "gpu" in machine else ""
    return (
        f"Medians of up to {rounds} rounds, with the minimum and the maximum in brackets; a ratio compares values of "
        "the same round. "
        f"{gpu}{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}; "
        f"load average {min(loads):.1f} to {max(loads):.1f}; commit {found.commit}, {found.began}."
    )


if __name__ == "__main__":
    write(results.load(Path(sys.argv[1]) if sys.argv[1:] else results.newest()))
