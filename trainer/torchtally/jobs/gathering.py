"""The overviews of jobs in a cluster, and of logs."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchtally.cluster import logs, observer_volume
from torchtally.cluster.job_kinds import ClusterError, ClusterJob, Unreachable
from torchtally.jobs import job_outcome, job_status
from torchtally.jobs.cluster import Cluster, Pod, lives, restarts, waits
from torchtally.jobs.files import found
from torchtally.jobs.job_outcome import Standing
from torchtally.jobs.job_status import Overview
from torchtally.observed import report as observed
from torchtally.record.record import Record
from torchtally.verifier.conclusion import conclusion, summary_of_runs
from torchtally.verifier.log import Log
from torchtally.verifier.log_file import open_log
from torchtally.verifier.observation import observation_of, outcome_of
from torchtally.verifier.outcome import Outcome, worst
from torchtally.verifier.verdict import Verdict, judge

Pods = dict[str, Pod]


def of_job(cluster: Cluster, job: ClusterJob) -> Overview:
    """With all logs. Raises ClusterError."""
    pods, warnings, log = read_job(cluster, job)
    return judged(log, job, pods, warnings)


def read_job(cluster: Cluster, job: ClusterJob) -> tuple[Pods, list[str], Record]:
    """The pods, the cluster's warnings, and all logs. Raises ClusterError."""
    pods, warnings = _asked(cluster, job)
    log = Record()
    for name, pod in pods.items():
        if restarts(pod, job.container):  # the verifier needs no log of an earlier start
            with cluster.log(name, job, previous=True) as stream:
                for line in stream:
                    log.add_event(name, line)
    logs.read(cluster.core, job, log)
    tell(log, job, pods)
    return pods, warnings, log


def briefly(cluster: Cluster, job: ClusterJob, pods: Pods) -> Overview:
    """By the log of the first pod alone, whose last line proves the run; what is observed is in all of them.

    Raises ClusterError.
    """
    log = Record()
    own = {name: pod for name, pod in pods.items() if _is_of(pod, job)}
    expected = job.pods(cluster.core)
    names = [name for name in expected if name in own] or expected[:1]  # one that is gone, to say so
    first = names[:1] if job.has_leader else names
    logs.read(cluster.core, job, log, first)
    if (log.observed or any(map(observer_volume.carries, own.values()))) and not log.runs:
        logs.read(cluster.core, job, log, [name for name in expected if name not in first])
    tell(log, job, own)
    return judged(log, job, own)


def of_files(path: Path) -> Overview:
    """Of logs. Raises Refused."""
    log = read_files(path)
    outcome, sentence = _judgement(log)
    return job_status.of(
        path.name or str(path),
        log.snapshot,
        at=time.time(),
        standing=job_outcome.of(outcome, None),
        proof=sentence,
    )


def read_files(path: Path) -> Record:
    """All logs. Raises Refused."""
    log = Record()
    for file in found(path):
        with open_log(file) as stream:
            log.read(str(file), stream)
    return log


def so_far(log: Record, name: str, job: ClusterJob | None, pods: Pods, warnings: Iterable[str]) -> Overview:
    """Of a job that has not ended, without a judgement: that takes long for many pods."""
    return job_status.of(
        name,
        log.snapshot,
        at=time.time(),
        standing=job_outcome.of(Outcome.PENDING, job) if job else Standing.RUNNING,
        **_known(job, pods),
        warnings=warnings,
    )


def tell(log: Record, job: ClusterJob, pods: Pods) -> None:
    """Tell the record what the status of each pod says."""
    for name, pod in pods.items():
        for life in lives(pod, job.container):
            if life.container is not None or life.created is not None:
                log.add_life(name, life)


def _asked(cluster: Cluster, job: ClusterJob) -> tuple[Pods, list[str]]:
    """The pods, and the cluster's warnings; rights that lack are a warning."""
    pods: Pods = {}
    try:
        pods = cluster.pods(job)
        return pods, cluster.warnings(job, pods)
    except Unreachable:
        raise
    except ClusterError as error:
        return pods, [error.args[0]]


def judged(log: Record, job: ClusterJob, pods: Pods, warnings: Iterable[str] = ()) -> Overview:
    """Of a job whose logs are read."""
    outcome, sentence = _judgement(log)
    return job_status.of(
        job.name,
        log.snapshot,
        at=time.time(),
        standing=job_outcome.of(outcome, job),
        proof=sentence,
        silent=[complaint.text for complaint in log.complaints if complaint.no_log] if job.ended else (),
        **_known(job, pods),
        warnings=warnings,
    )


def _known(job: ClusterJob | None, pods: Pods) -> dict[str, Any]:
    if job is None:
        return {}
    state = job.state.lower() if job.ended else job.progress
    waiting = {name: why for name, pod in pods.items() if (why := waits(pod))}
    return {"state": state, "kind": job.kind, "namespace": job.namespace, "waits": waiting}


def _judgement(log: Log) -> tuple[Outcome, str]:
    """What all of a log comes to, and the sentence of the worst."""
    observation = observation_of(log)
    if observation is None:
        verdicts = judge(log)
        return worst(each.outcome for each in verdicts), _sentence(verdicts)
    own = outcome_of(observation, log.job)
    sentence = next(iter(observation.faults), observed.conclusion(observation))
    if log.job and own is log.job.outcome:
        sentence = f"{own}: {log.job.sentence}"
    if not log.runs:
        return own, sentence
    verdicts = judge(log)
    proved = worst(each.outcome for each in verdicts)
    return (proved, _sentence(verdicts)) if worst([proved, own]) is proved else (own, sentence)


def _sentence(verdicts: list[Verdict]) -> str:
    return conclusion(verdicts[0]) if len(verdicts) == 1 else summary_of_runs(verdicts)


def _is_of(pod: Pod, job: ClusterJob) -> bool:
    labels = pod.metadata.labels or {}
    return all(
        labels.get(name) == value for name, _, value in (each.partition("=") for each in job.selector.split(","))
    )
