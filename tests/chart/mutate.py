"""Mutation test of the chart: removes lines of its templates, one at a time, and runs the unit tests.

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


def candidates() -> list[tuple[Path, int]]:
    """Return file and line number of all lines except comments and empty lines."""
    found = []
    for path in sorted((CHART / "templates").rglob("*")):
        if path.is_file():
            lines = COMMENT.sub(lambda found: "\n" * found[0].count("\n"), path.read_text()).splitlines()
            found += [(path.relative_to(CHART), number) for number, line in enumerate(lines) if _does_something(line)]
    return found


def _does_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def noticed(line: tuple[Path, int] | None) -> bool:
    """Return whether the unit tests fail without this line, in a new copy because they rewrite snapshots."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder, "torchtally")
        shutil.copytree(CHART, chart)
        if line:
            path, number = line
            kept = (chart / path).read_text().splitlines(keepends=True)
            del kept[number]
            (chart / path).write_text("".join(kept))
        command = ["helm", "unittest", "--strict", "--skip-schema-validation", chart]  # the schema stays the same
        return subprocess.run(command, capture_output=True).returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="number of random lines (default: all lines)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines = candidates()
    if options.sample:
        lines = sorted(random.Random(options.seed).sample(lines, min(options.sample, len(lines))))
    unnoticed = []
    if noticed(None):
        sys.exit("mutate: the unit tests of the unchanged chart fail; run helm unittest charts/torchtally")
    for line in tqdm(lines, "lines", leave=False, disable=None):
        if not noticed(line):
            path, number = line
            text = (CHART / path).read_text().splitlines()[number].strip()
            unnoticed.append(f"{path}:{number + 1}: {text}")
    print(*unnoticed, sep="\n")
    seen = len(lines) - len(unnoticed)
    share = f"{seen} of {len(lines)} lines ({seen / len(lines):.1%})"
    print(f"the unit tests detect the removal of {share}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
