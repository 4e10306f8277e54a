"""Check, before a training, what it needs: this machine, a cluster, and two steps of a script.

Nothing is changed: a cluster is asked by reading, by reviews of rights, and by server dry runs.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec

from torchtally.checks import machine
from torchtally.checks.finding import Finding, Level, warning
from torchtally.console import Parser, show

EPILOG = """\
examples:
  torchtally check                          this machine
  torchtally check --cluster -n team        and the namespace of a cluster
  torchtally check train.py --epochs 1      and two ranks of a script, up to its second step

exit status: 0 nothing that was checked is bad; 1 something is; 2 a mistake in the options.
"""
_MARKS = {Level.GOOD: "✓", Level.WARNING: "!", Level.BAD: "✗"}
_PLAIN = {Level.GOOD: "ok", Level.WARNING: "warning", Level.BAD: "BAD"}


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    marks = _MARKS if (sys.stdout.encoding or "").lower().startswith("utf") else _PLAIN
    worst = 0
    for found in _findings(options):
        worst = max(worst, int(found.level is Level.BAD))
        if options.json:
            show(json.dumps({**asdict(found), "link": found.link}))
            continue
        show(f"{marks[found.level]} {found.check}: {found.text}")
        if found.level is not Level.GOOD:
            show(f"    see {found.link}")
    return worst


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    yield from machine.findings()
    if find_spec("torch"):
        yield from import_module("torchtally.checks.training").findings()
    else:
        yield warning("pytorch", "no PyTorch in this environment: it is checked in that of the pods alone")
    if options.cluster or options.context or options.namespace:
        from torchtally.checks import cluster  # its client takes a second to load

        yield from cluster.findings(options.namespace, options.context)
    if options.script:
        from torchtally.checks import script

        yield from script.findings(options.script, options.seconds)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="torchtally check",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cluster", action="store_true", help="check the cluster of the kubeconfig")
    parser.add_argument("-n", "--namespace", help="its namespace (default: that of the context or of this pod)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--json", action="store_true", help="print each finding as a line of JSON")
    parser.add_argument(
        "--seconds", type=float, default=300.0, metavar="N", help="limit for the script (default: %(default)g)"
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT …", help="a script, with its arguments")
    options = parser.parse_args(argv)
    if options.seconds <= 0:
        parser.error(f"--seconds is {options.seconds:g}, must be above 0")
    return options
