"""Mutation test of the chart: removes lines of its templates, one at a time, and runs the unit tests.
A line that opens a bracket goes with all up to the one that closes it.

    python tests/chart/mutate.py [--sample N] [--seed S]

Prints the lines that can be removed without a failure of `helm unittest`, and the share of the other lines. The exit
code is 1 if there are any such lines.
"""

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

CHART = Path(__file__).parents[2] / "charts/torchtally"
COMMENT = re.compile(r"\{\{- /\*.*?\*/\}\}", re.DOTALL)


def candidates() -> list[tuple[Path, range]]:
    """Return file and line numbers of all that can be removed: neither comments nor empty lines."""
    found = []
    for path in sorted((CHART / "templates").rglob("*")):
        if path.is_file():
            lines = COMMENT.sub(lambda found: "\n" * found[0].count("\n"), path.read_text()).splitlines()
            parts = [_part(lines, number) for number, line in enumerate(lines) if _does_something(line)]
            found += [(path.relative_to(CHART), part) for part in parts]
    return found


def _does_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#") and _opened(line) >= 0


def _opened(line: str) -> int:
    return len(re.findall(r"\{\{|\(", line)) - len(re.findall(r"\}\}|\)", line))


def _part(lines: list[str], first: int) -> range:
    last, opened = first, _opened(lines[first])
    while opened > 0:
        last += 1
        opened += _opened(lines[last])
    return range(first, last + 1)


def noticed(part: tuple[Path, range] | None) -> bool:
    """Return whether the unit tests fail without this part, in a new copy because they rewrite snapshots."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder, "torchtally")
        shutil.copytree(CHART, chart)
        if part:
            path, lines = part
            kept = (chart / path).read_text().splitlines(keepends=True)
            del kept[lines.start : lines.stop]
            (chart / path).write_text("".join(kept))
        command = ["helm", "unittest", "--strict", "--skip-schema-validation", chart]  # the schema stays the same
        return subprocess.run(command, capture_output=True).returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="number of random lines (default: all lines)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    parts = candidates()
    if options.sample:
        parts = random.Random(options.seed).sample(parts, min(options.sample, len(parts)))
    unnoticed = []
    if noticed(None):
        sys.exit("mutate: the unit tests of the unchanged chart fail; run helm unittest charts/torchtally")
    for path, lines in tqdm(parts, "lines", leave=False, disable=None):
        if not noticed((path, lines)):
            text = (CHART / path).read_text().splitlines()[lines.start].strip()
            unnoticed.append(f"{path}:{lines.start + 1}: {text}")
    print(*unnoticed, sep="\n")
    seen = len(parts) - len(unnoticed)
    share = f"{seen} of {len(parts)} lines ({seen / len(parts):.1%})"
    print(f"the unit tests detect the removal of {share}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
