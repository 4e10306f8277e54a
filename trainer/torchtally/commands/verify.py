"""Prove from a job's logs, or its proof.json, that every rank consumed exactly the samples that its contract names.

Of a program that keeps no account, tell from its logs what was handed out to each rank, and what is wrong with it."""

import argparse
import io
import json
import math
import sys
from pathlib import Path

from torchtally import console
from torchtally.commands import archived
from torchtally.errors import Refused
from torchtally.observed.judge import Observation
from torchtally.verifier import report
from torchtally.verifier.log import Log
from torchtally.verifier.log_file import open_log
from torchtally.verifier.observation import observation_of, outcome_of
from torchtally.verifier.outcome import Outcome, worst
from torchtally.verifier.verdict import Verdict, judge

EPILOG = f"""\
exit status: 0 proved: of each run in the logs the last line, or else every phase and epoch of every rank, is there, and
all lines agree; or observed: no fault was seen; 1 disproved, or faulty: lines contradict the contract or
each other, or a program was handed out samples wrongly; 2 bad input (options, files, no such job, no
access to the cluster); 3 incomplete: nothing contradicts, but lines are missing; with --job, in place of 3: 4 pending:
the job has not ended; 5 failed: the job has failed. Of several runs, the first of 1, 5, 4, 3 that one of them has.

{report.JSON_HELP}
"""


def main(argv: list[str] | None = None) -> int:
    try:
        options = _options(argv)
        verdicts, observation, outcome = _verdicts(options)
    except Refused as refused:
        return console.refuse("torchtally verify", refused)
    if options.json:
        console.show(report.as_json(verdicts, observation, outcome))
    else:
        encoding, colour = sys.stdout.encoding, sys.stdout.isatty()
        console.show(report.as_text(verdicts, observation, encoding=encoding, colour=colour))
    return outcome.status


def _verdicts(options: argparse.Namespace) -> tuple[list[Verdict], Observation | None, Outcome]:
    """The verdicts on runs, the observation of what keeps no account, and what they come to."""
    alone = len(options.paths) == 1 and archived.is_one(Path(options.paths[0]))
    log = _read_job(options) if options.job else Log()
    for path in options.sizes:
        _read_sizes(log, path)
    if alone:
        proof = archived.verdict(Path(options.paths[0]), options.model, options.run, options.expect_per_pod, log.told)
        return [proof], None, proof.outcome
    if options.model:
        raise Refused("--model goes with a proof alone: the logs have the model's hash at most")
    proofs = [proof for path in options.paths for proof in _read(log, path)]
    for each in proofs:  # whose lines count for runs in the logs alone
        archived.add_to(log, each)
    observation = None if options.run else observation_of(log, options.expect_per_pod)
    verdicts = [] if observation and not log.runs else judge(log, options.run, options.expect_per_pod)
    outcomes = [verdict.outcome for verdict in verdicts]
    outcomes += [outcome_of(observation, log.job)] if observation else []
    return verdicts, observation, worst(outcomes)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(
        prog="torchtally verify",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="logs: files, folders, or - for stdin; a proof.json, alone or beside the logs of its run",
    )
    parser.add_argument("--job", metavar="NAME", help="read the logs of this job's pods in the cluster")
    parser.add_argument("-n", "--namespace", help="its namespace (default: that of the context or of this pod)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument(
        "--wait",
        nargs="?",
        type=float,
        const=math.inf,
        metavar="SECONDS",
        help="wait until the job has ended, at most so long (default: without a limit)",
    )
    parser.add_argument("--run", metavar="ID", help="judge this run alone, where the logs hold several")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument(
        "--expect-per-pod", type=int, metavar="COUNT", help="samples that each pod must have consumed in a train epoch"
    )
    parser.add_argument(
        "--sizes",
        action="append",
        default=[],
        metavar="FILE",
        help="sizes of a dataset's shard files, as a list in JSON",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="FILE",
        help="a file, or a folder of a checkpoint, that the proof must be of; repeatable",
    )
    options = parser.parse_args(argv)
    if bool(options.job) == bool(options.paths):
        parser.error("give either --job NAME or logs to read (files, folders, or - for standard input)")
    if not options.job and (options.namespace or options.context or options.wait is not None):
        parser.error("-n, --context, and --wait go with --job")
    if options.wait is not None and not options.wait >= 0:
        parser.error(f"--wait is {options.wait:g}, must be 0 or more seconds")
    if options.expect_per_pod is not None and options.expect_per_pod < 0:
        parser.error(f"--expect-per-pod is {options.expect_per_pod}, must be 0 or more")
    return options


def _read_sizes(log: Log, path: str) -> None:
    try:
        with Path(path).open(encoding="utf-8") as file:
            log.tell(json.load(file))
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, OverflowError) as error:
        raise Refused(f"{path} must have sizes of shard files as a list in JSON: {error}") from error


def _read_job(options: argparse.Namespace) -> Log:
    from torchtally.cluster import job_kinds, logs  # files need no Kubernetes client, which takes a second to load

    try:
        return logs.read_job(options.job, options.namespace, options.context, wait_seconds=options.wait)
    except job_kinds.Unreachable as error:  # which has an exit status of its own elsewhere
        raise Refused(error) from error


def _read(log: Log, path: str) -> list[Path]:
    """Add the logs of a file or a folder. Returns the proofs among them."""
    if path == "-":
        # newline="": progress bars end their lines by a carriage return
        log.read("standard input", io.TextIOWrapper(sys.stdin.buffer, "utf-8", "replace", newline=""))
        return []
    files = [str(Path(path))]
    if Path(path).is_dir():
        files = [str(file) for file in sorted(Path(path).rglob("*")) if file.is_file()]  # each Path takes 0.5 KB
        if not files:
            raise Refused(f"the folder {path} holds no file: name the folder with the pods' logs")
    proofs = []
    for file in map(Path, files):
        if archived.is_one(file):
            proofs.append(file)
            continue
        with open_log(file) as stream:
            log.read(str(file), stream)
    return proofs
