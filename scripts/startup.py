#!/usr/bin/env python3
"""Tell where the time went from a job's creation to its first step, from what the cluster and the pods' logs say."""

import argparse
import sys

try:
    from phases import read, report
    from phases.split import split
    from phases.waits import NotYet
    from verify import console
    from verify.job_kinds import ClusterError
except ModuleNotFoundError as error:
    print(
        f"startup: the Python package {error.name} is missing: run `make scripts`, then `. .venv/bin/activate`",
        file=sys.stderr,
    )
    sys.exit(2)

EPILOG = f"""\
exit status: 0 all is told; 1 there is no first step (yet): a sentence says why; 2 bad input (options, no such job, no
access to the cluster). A cluster keeps events for an hour: later, phases that only they tell apart are one.

{report.JSON_HELP}
"""


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    try:
        job = read.read(options.job, options.namespace, options.context)
        found = split(job)
    except ClusterError as error:
        print(f"startup: {error}", file=sys.stderr)
        return 2
    except NotYet as error:
        print(f"startup: {error}", file=sys.stderr)
        return 1
    console.show(report.as_json(job, found) if options.json else report.as_text(job, found))
    return 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="startup", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", metavar="JOB", help="a PyTorchJob or a TrainJob")
    parser.add_argument("-n", "--namespace", help="its namespace (default: that of the context or of this pod)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(console.run(main))
