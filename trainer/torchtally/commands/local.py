"""Run a PyTorchJob or a TrainJob on this machine as its operator runs it in a cluster.

Each pod is a process here, or a container with --docker. The pods' lines go to stdout, each with the name of its pod
in front; what the runner itself says goes to stderr. Exit status: 0 if the job succeeds, 1 if it fails (or is
suspended), 2 if its manifest is not valid, 128 + n if signal n ends it.
"""

import argparse
import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any, BinaryIO

from torchtally import console
from torchtally.errors import Refused
from torchtally.local import containers, manifest, processes, unsupported
from torchtally.local.controller import Controller, Outcome, Verdict
from torchtally.local.job import LocalJob
from torchtally.local.output import Output, say

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(argv: list[str] | None = None) -> int:
    try:
        options = _options(argv)
        found = manifest.load(options.file, options.name, observe=options.observe)
    except Refused as refused:
        return console.refuse("torchtally local", refused)
    for warning in found.warnings:
        say(f"warning: {warning}")
    if found.others:
        say(f"runs {found.job.title}; not applied: {', '.join(found.others)}")
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(Path(options.log).open("wb", buffering=0)) if options.log else None
        except OSError as error:
            return console.refuse(
                "torchtally local", Refused(f"--log {options.log} cannot be written: {error.strerror}")
            )
        return _outcome(found.job, options, log)


def _outcome(job: LocalJob, options: argparse.Namespace, log: BinaryIO | None) -> int:
    """Run the job; return the exit status."""
    try:
        return asyncio.run(_run(job, options, log))
    except* containers.EngineError as errors:
        say(str(errors.exceptions[0]))
    except* BrokenPipeError:  # the reader has left, and the pods are ended
        pass
    return 1


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(prog="torchtally local", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("-f", "--file", required=True, metavar="FILE", help="the manifest; - reads stdin")
    parser.add_argument("--name", help="the job to run, if the file has several")
    parser.add_argument(
        "--entrypoint", default="torchtally", help="what a container without a command runs (default: %(default)s)"
    )
    parser.add_argument(
        "--docker",
        nargs="?",
        const="",
        metavar="IMAGE",
        help="make each pod a Docker container, of the manifest's image or of this one",
    )
    parser.add_argument(
        "--log",
        metavar="FILE",
        help="write all lines of the pods to FILE, and show only those for people: no tally lines, no events",
    )
    parser.add_argument(
        "--observe",
        action="store_true",
        help="observe the job in any image or Python (torchtally observe inject)",
    )
    parser.add_argument("--json", action="store_true", help="end stdout with the outcome as one line of JSON")
    return parser.parse_args(argv)


async def _run(job: LocalJob, options: argparse.Namespace, log: BinaryIO | None) -> int:
    if job.suspended:
        verdict = Verdict(Outcome.SUSPENDED, f"{job.title} is suspended.")
        say(f"{verdict.message} It runs when its field suspend is false.")
        if options.json:
            _print_json(job, verdict, None, None)
        return 1
    engine: processes.Processes | containers.Containers
    if options.docker is None:
        engine, support = processes.Processes(job, options.entrypoint), processes.SUPPORTED
    else:
        engine, support = containers.Containers(job, options.docker or None), containers.SUPPORTED
    if items := unsupported.found_in(job, support, engine.gpus):
        say(f"unsupported here and ignored: {', '.join(items)}")
    async with engine:
        output = Output([pod.name for pod in job.pods], log=log)
        controller = Controller(job, engine, output)
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, controller.interrupt, number)
        verdict = await controller.run()
    observation = None
    if output.observed:
        from torchtally.observed import judge, report  # which most jobs need not wait for

        if found := judge.of(output.observed):
            observation = report.as_json(found)
            with contextlib.suppress(OSError):  # the reader has left
                report.on_stderr(found)
    if options.json:
        _print_json(job, verdict, controller, observation)
    if verdict.outcome is Outcome.INTERRUPTED and controller.interrupted_by:
        return 128 + controller.interrupted_by
    return 0 if verdict.outcome is Outcome.SUCCEEDED else 1


def _print_json(
    job: LocalJob, verdict: Verdict, controller: Controller | None, observation: dict[str, Any] | None
) -> None:
    status = controller.status if controller else {}
    pods = [
        {"name": name, "phase": pod.phase, "exitCode": pod.exit_code, "restarts": pod.restarts}
        for name, pod in status.items()
    ]
    report = {
        "job": job.name,
        "namespace": job.namespace,
        "outcome": verdict.outcome,
        "message": verdict.message,
        "pods": pods,
        "observation": observation,
    }
    try:
        print(json.dumps(report), flush=True)
    except OSError as error:  # the exit status stays the job's
        say(f"the outcome cannot be written to standard output: {error.strerror}")
