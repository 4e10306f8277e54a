"""Show the jobs of a cluster: how far they are, what happened to them, and whether they are proved."""

import argparse

from torchtally import console
from torchtally.errors import Refused
from torchtally.jobs import commands

EPILOG = """\
In place of a JOB, the path of logs in a file or a folder: it has a / or a dot, as ./logs has.

exit status of status and watch: 0 proved, or observed without a fault; 1 disproved, or observed with one; 2 a
mistake (options, no such job, a missing permission); 3 incomplete: nothing contradicts, but lines are missing;
4 pending: queued, suspended, or starting; 5 failed; 6 running; 7 the cluster does not answer. The other commands end
with 0 after success.
"""
JOB = "a PyTorchJob, a TrainJob, a JobSet, or a Job, or the path of logs"


def main(argv: list[str] | None = None) -> int:
    run = {
        "list": commands.list_,
        "status": commands.status,
        "watch": commands.watch,
        "fetch": commands.fetch,
        "report": commands.report,
    }
    try:
        options = _options(argv)
        return run[options.command](options)
    except Refused as refused:
        return console.refuse("torchtally jobs", refused)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(
        prog="torchtally jobs",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = console.Parser(add_help=False)
    common.add_argument("-n", "--namespace", help="namespace (default: that of the context or of this pod)")
    common.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    common.add_argument("--json", action="store_true", help="print JSON; of watch, a line for each object")
    of_job = console.Parser(add_help=False, parents=[common])
    of_job.add_argument("job", metavar="JOB", help=JOB)
    kinds = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    kinds.add_parser("list", parents=[common], help="the jobs of a namespace: state, progress, restarts, proof")
    kinds.add_parser("status", parents=[of_job], help="a job: progress, its pods, restarts and their causes, proof")
    kinds.add_parser("watch", parents=[of_job], help="the same until the job ends; without a terminal, line by line")
    fetch = kinds.add_parser("fetch", parents=[of_job], help="copy model, proof, and page from the job's PVC")
    fetch.add_argument("folder", metavar="DIR", help="new or empty folder to copy to")
    fetch.add_argument("--checkpoints", action="store_true", help="copy the checkpoints as well")
    report = kinds.add_parser("report", parents=[of_job], help="write a page of the newest run, with charts")
    report.add_argument("page", metavar="FILE", help="HTML file to write")
    return parser.parse_args(argv)
