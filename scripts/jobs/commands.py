"""What each command does; returns the exit status. They raise ClusterError, NoLogs, and BadInput."""

import argparse
import heapq
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import verify_shards

from torchtally.page import document
from torchtally.verifier import observing
from torchtally.verifier.verdict import judge
from verify.errors import BadInput
from verify.job_kinds import ClusterJob, NoJob, Unreachable

from . import fetching, files, show, views, watching
from .cluster import Cluster, restarts
from .follow import Follower
from .merging import Entry, Printer, moment, timed
from .overview import Overview
from .standing import Standing

_SETTLES = 1.0  # seconds in which lines of several pods are put in order
Options = argparse.Namespace | SimpleNamespace


def list_(options: Options) -> int:
    """The jobs of a namespace."""
    cluster = _cluster(options)
    jobs = cluster.jobs()
    pods = cluster.pods() if jobs else {}
    overviews = [views.briefly(cluster, job, pods) for job in jobs]
    if options.json:
        show.output(show.dumped({"namespace": cluster.namespace, "jobs": [show.as_json(each) for each in overviews]}))
    elif overviews:
        console = show.console()
        console.print(show.jobs(overviews, console.encoding, console.width))
    else:
        show.output(f"no PyTorchJob or TrainJob in namespace {cluster.namespace}")
    return 0


def status(options: Options) -> int:
    """A job now."""
    overview = _overview(options)
    if options.json:
        show.output(show.dumped(show.as_json(overview)))
    else:
        console = show.console()
        console.print(show.whole(overview, console.encoding, console.width))
    return overview.standing.status


def watch(options: Options) -> int:
    """A job until it ends."""
    screen = watching.Screen(as_json=options.json)
    if options.run:
        return _watch_command(Path(options.job), options.run, screen)
    if files.is_path(options.job):
        return watching.logs(Path(options.job), screen).status
    return watching.job(_cluster(options), options.job, screen).status


def _watch_command(path: Path, command: list[str], screen: watching.Screen) -> int:
    """Watch the log that a command writes. The command's own output is shown if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")  # an earlier run's lines are not of this one
    with tempfile.TemporaryFile("w+") as said:
        try:
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        except OSError as error:
            raise BadInput(f"cannot run {command[0]}: {error.strerror}") from error
        try:
            standing = watching.logs(path, screen, lambda: process.poll() is None)
        finally:
            process.terminate()  # nothing where it has ended
            process.wait()
        if process.returncode:
            said.seek(0)
            print(said.read(), end="", file=show.errors())
            return process.returncode if process.returncode > 0 else 128 - process.returncode
    return standing.status


def logs(options: Options) -> int:
    """The lines of all pods by their times."""
    printer = Printer(show.console(), fold=not options.all, as_json=options.json)
    if files.is_path(options.job):
        if options.follow:
            raise BadInput("--follow goes with a job in the cluster; `watch` follows logs in files")
        printer.print(heapq.merge(*map(_of_file, files.found(Path(options.job))), key=lambda entry: entry.time))
    else:
        cluster = _cluster(options)
        job = cluster.job(options.job)
        follow = _followed if options.follow else _read
        for entries in follow(cluster, job):
            printer.print(entries)
    printer.flush()
    return 0


def verify(options: Options, rest: list[str]) -> int:
    """What verify_shards does."""
    own = ["--json"] * options.json
    if files.is_path(options.job):
        return verify_shards.check([*rest, *own, "--", options.job])
    for name in ("namespace", "context"):
        if value := getattr(options, name):
            own += [f"--{name}", value]
    return verify_shards.check([*rest, *own, "--job", options.job])


def fetch(options: Options) -> int:
    """The results of a job."""
    if files.is_path(options.job):
        raise BadInput(f"fetch copies from a job in the cluster, and {options.job} names logs")
    folder = Path(options.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} exists and is no empty folder: name another one")
    cluster = _cluster(options)
    try:
        job = cluster.job(options.job)
    except NoJob as error:
        source = fetching.of_claim(cluster, options.job, str(error))
        print(f"torchtally_jobs: {error}: its claim is read", file=show.errors())
    else:
        if not job.ended:
            print(f"torchtally_jobs: {job.sentence}: its results are not complete", file=show.errors())
            running = job.progress in ("running", "restarting")
            return (Standing.RUNNING if running else Standing.PENDING).status
        source = fetching.of_job(cluster, job)
    try:
        names = fetching.fetch(cluster, source, folder, checkpoints=options.checkpoints)
    except OSError as error:
        raise BadInput(f"cannot write {error.filename or folder}: {error.strerror}") from error
    except fetching.Wrong as error:
        print(f"torchtally_jobs: {error}", file=show.errors())
        return Standing.DISPROVED.status
    show.output(show.dumped({"folder": str(folder), "files": names}) if options.json else _copied(folder, names))
    return 0


def report(options: Options) -> int:
    """The page of the newest run, or of what was observed."""
    if files.is_path(options.job):
        log = views.read_files(Path(options.job))
    else:
        cluster = _cluster(options)
        _, _, log = views.read_job(cluster, cluster.job(options.job))
    observation = observing.observation(log)
    snapshot, path = replace(log.snapshot, observation=observation), Path(options.page)
    try:
        if snapshot.run:
            verdict = judge(log, snapshot.run.id)[0]
            outcome = verdict.outcome
            document.write(snapshot, verdict, path)
        elif observation:
            outcome = observing.outcome(observation, log.job)
            document.write_observed(snapshot, outcome, path)
        else:
            raise BadInput(f"the logs of {options.job} hold no run yet, so there is no page to write")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from error
    told = f"{outcome}: see {path.absolute().as_uri()}"
    show.output(show.dumped({"page": str(path), "outcome": outcome}) if options.json else told)
    return 0


def _copied(folder: Path, names: list[str]) -> str:
    return f"copied to {folder}: {', '.join(names)}" if names else f"the claim has no file yet: {folder} is empty"


def _cluster(options: Options) -> Cluster:
    return Cluster(options.context, options.namespace)


def _overview(options: Options) -> Overview:
    if files.is_path(options.job):
        return views.of_files(Path(options.job))
    cluster = _cluster(options)
    return views.of_job(cluster, cluster.job(options.job))


def _of_file(file: Path) -> Iterator[Entry]:
    """The lines of a file. Those of one that holds several pods stay in their order."""
    with file.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        parts = (files.parted(file, line.rstrip("\n")) for line in stream)
        yield from timed(parts)


def _read(cluster: Cluster, job: ClusterJob) -> Iterator[Iterator[Entry]]:
    """The logs so far: of each pod, that of the start before the last one, too."""
    own = [_of_pod(cluster, job, name, bool(restarts(pod, job.container))) for name, pod in cluster.pods(job).items()]
    yield heapq.merge(*own, key=lambda entry: entry.time)


def _of_pod(cluster: Cluster, job: ClusterJob, pod: str, restarted: bool) -> Iterator[Entry]:
    for previous in (True, False) if restarted else (False,):
        with cluster.log(pod, job, timestamps=True, previous=previous) as stream:
            for text in stream:
                when, _, line = text.rstrip("\n").partition(" ")
                yield Entry(moment(when), pod, line)


def _followed(cluster: Cluster, job: ClusterJob) -> Iterator[list[Entry]]:
    """The lines as they come, until the job has ended: of each second in order."""
    follower = Follower(cluster, job)
    while True:
        try:
            job = cluster.job(job.name)
            follower.show(cluster.pods(job))
        except Unreachable:  # the logs may still come
            pass
        came = list(follower.lines(_SETTLES))
        yield sorted((Entry(moment(line.time), line.pod, line.text) for line in came), key=lambda entry: entry.time)
        if job.ended and not came and not follower.busy:
            return
