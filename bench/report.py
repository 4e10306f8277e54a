"""The tables and the plot of a file of results: `python -m bench.report [FILE.json]`."""

import sys
from pathlib import Path

from bench import goals, plot, results, table
from bench.results import FOLDER, Results

PAGE = Path("docs/benchmarks.md")
_BEGIN, _END = "<!-- python -m bench.report writes this: -->\n", "<!-- until here -->\n"


def write(found: Results) -> None:
    (FOLDER / "table.md").write_text(table.text(found) + "\n")
    plot.draw(found, FOLDER / "plot.svg")
    PAGE.write_text(with_goals(PAGE.read_text(), found, results.newest_on_gpu()))


def with_goals(page: str, found: Results, on_gpu: Results | None) -> str:
    """The page with its table of goals replaced."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{PAGE} must have the lines {_BEGIN.strip()} and {_END.strip()} around the goals")
    below = [table.conditions(found)]
    if on_gpu:
        below.append(f"On a GPU: {table.conditions(on_gpu)}")
    text = "\n\n".join([goals.text(found, on_gpu), *below])
    return f"{before}{begin}\n{text}\n\n{end}{after}"


if __name__ == "__main__":
    write(results.load(Path(sys.argv[1]) if sys.argv[1:] else results.newest()))
