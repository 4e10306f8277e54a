#!/usr/bin/env python3
"""Write a run's page from the logs of its pods: one HTML file with its verdict and charts, which needs no network."""

import argparse
import sys
from pathlib import Path

try:
    import verify  # noqa: F401  # first, as it finds torchtally in this checkout
    from torchtally.page import document
    from torchtally.record.record import Record
    from torchtally.verifier.log import Log
    from torchtally.verifier.verdict import UnknownRun, judge
    from torchtally.verifier.wrapped import Unwrapping
    from verify import console
except ModuleNotFoundError as error:
    print(
        f"report: the Python package {error.name} is missing: run `make scripts`, then `. .venv/bin/activate`",
        file=sys.stderr,
    )
    sys.exit(2)

EPILOG = "exit status: 0 the page is written, whatever its verdict; 1 it cannot be written; 2 bad input."
_WANTED = "TORCHTALLY"  # the beginning of tally lines and of events
_LONGEST = 1 << 20  # characters of a line


class BadInput(Exception):
    """What the user gave cannot be read."""


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    try:
        log, record = _read(options.paths)
        verdict = judge(log, options.run)[-1]  # in the order in which the runs began
    except (BadInput, UnknownRun) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    path = Path(options.output)
    try:
        document.write(record.snapshot, verdict, path)
    except OSError as error:
        print(f"report: {path} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    console.show(f"{verdict.outcome}: see {path.absolute().as_uri()}")
    return 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="report", description=__doc__, epilog=EPILOG)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="logs: files or folders")
    parser.add_argument("--output", default="report.html", metavar="FILE", help="the page (default: %(default)s)")
    parser.add_argument("--run", metavar="ID", help="of the runs in the logs this one (default: the newest)")
    return parser.parse_args(argv)


def _read(paths: list[str]) -> tuple[Log, Record]:
    log, record = Log(), Record()
    for path in paths:
        given = Path(path)
        files = sorted(file for file in given.rglob("*") if file.is_file()) if given.is_dir() else [given]
        if not files:
            raise BadInput(f"the folder {path} holds no file")
        for file in files:
            try:
                with file.open(encoding="utf-8", errors="replace", newline="") as stream:
                    log.read(str(file), stream)
                    stream.seek(0)
                    unwrapping = Unwrapping(_WANTED, _LONGEST)
                    while text := stream.readline(_LONGEST):
                        for line in unwrapping.lines(text):
                            record.add(file.stem, line)
                    for line in unwrapping.rest():
                        record.add(file.stem, line)
            except OSError as error:
                raise BadInput(f"cannot read {file}: {error.strerror}") from error
    return log, record


if __name__ == "__main__":
    sys.exit(console.run(main))
