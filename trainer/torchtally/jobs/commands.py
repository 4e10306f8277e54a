"""What each command does; returns the exit status. They raise ClusterError and Refused."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from torchtally.cluster.job_kinds import NoJob
from torchtally.console import show
from torchtally.errors import Refused
from torchtally.jobs import fetching, files, gathering, tables, watching
from torchtally.jobs.cluster import Cluster
from torchtally.jobs.job_outcome import Standing
from torchtally.jobs.job_status import Overview
from torchtally.page import document
from torchtally.verifier.observation import observation_of, outcome_of
from torchtally.verifier.verdict import judge

Options = argparse.Namespace | SimpleNamespace


def list_(options: Options) -> int:
    """The jobs of a namespace."""
    cluster = _cluster(options)
    jobs = cluster.jobs()
    pods = cluster.pods() if jobs else {}
    overviews = [gathering.briefly(cluster, job, pods) for job in jobs]
    if options.json:
        _show_json({"namespace": cluster.namespace, "jobs": [msgspec.to_builtins(each) for each in overviews]})
    elif overviews:
        console = tables.console()
        console.print(tables.jobs(overviews, console.encoding, console.width))
    else:
        show(f"no PyTorchJob or TrainJob in namespace {cluster.namespace}")
    return 0


def status(options: Options) -> int:
    """A job now."""
    overview = _overview(options)
    if options.json:
        _show_json(msgspec.to_builtins(overview))
    else:
        console = tables.console()
        console.print(tables.whole(overview, console.encoding, console.width))
    return overview.standing.status


def watch(options: Options) -> int:
    """A job until it ends."""
    screen = watching.Screen(as_json=options.json)
    if files.is_path(options.job):
        return watching.logs(Path(options.job), screen).status
    return watching.job(_cluster(options), options.job, screen).status


def fetch(options: Options) -> int:
    """The results of a job."""
    if files.is_path(options.job):
        raise Refused(f"fetch copies from a job in the cluster, and {options.job} names logs")
    folder = Path(options.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} exists and is no empty folder: name another one")
    cluster = _cluster(options)
    try:
        job = cluster.job(options.job)
    except NoJob as error:
        source = fetching.of_claim(cluster, options.job, str(error))
        print(f"torchtally jobs: {error.args[0]}: its PVC is read", file=sys.stderr)
    else:
        if not job.ended:
            print(f"torchtally jobs: {job.sentence}: its results are not complete", file=sys.stderr)
            running = job.progress in ("running", "restarting")
            return (Standing.RUNNING if running else Standing.PENDING).status
        source = fetching.of_job(cluster, job)
    try:
        names = fetching.fetch(cluster, source, folder, checkpoints=options.checkpoints)
    except OSError as error:
        raise Refused(f"cannot write {error.filename or folder}: {error.strerror}: name another folder") from error
    except fetching.Wrong as error:
        print(f"torchtally jobs: {error}", file=sys.stderr)
        return Standing.DISPROVED.status
    if options.json:
        _show_json({"folder": str(folder), "files": names})
    else:
        show(_copied(folder, names))
    return 0


def report(options: Options) -> int:
    """The page of the newest run, or of what was observed."""
    if files.is_path(options.job):
        log = gathering.read_files(Path(options.job))
    else:
        cluster = _cluster(options)
        _, _, log = gathering.read_job(cluster, cluster.job(options.job))
    observation = observation_of(log)
    snapshot, path = replace(log.snapshot, observation=observation), Path(options.page)
    try:
        if snapshot.run:
            verdict = judge(log, snapshot.run.id)[0]
            outcome = verdict.outcome
            document.write(snapshot, verdict, path)
        elif observation:
            outcome = outcome_of(observation, log.job)
            document.write_observed(snapshot, outcome, path)
        else:
            raise Refused(f"the logs of {options.job} hold no run yet, so there is no page to write")
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}: name another file") from error
    if options.json:
        _show_json({"page": str(path), "outcome": outcome})
    else:
        show(f"{outcome}: see {path.absolute().as_uri()}")
    return 0


def _show_json(value: dict[str, Any]) -> None:
    show(json.dumps(value, indent=2))


def _copied(folder: Path, names: list[str]) -> str:
    return f"copied to {folder}: {', '.join(names)}" if names else f"the PVC has no file yet: {folder} is empty"


def _cluster(options: Options) -> Cluster:
    return Cluster(options.context, options.namespace)


def _overview(options: Options) -> Overview:
    if files.is_path(options.job):
        return gathering.of_files(Path(options.job))
    cluster = _cluster(options)
    return gathering.of_job(cluster, cluster.job(options.job))
