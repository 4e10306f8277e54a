"""The entry point of a pod: it starts torchrun's agent with the pod's job, and makes an exit code of the outcome."""

import logging
import os
import platform
import shutil
import tempfile
import uuid
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import loky
import torch
from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, rendezvous_handler_registry

from torchtally import compat, events
from torchtally.environment import Job, Patience, Places, hang_seconds, metrics_port, observes, pod_name
from torchtally.environment import retries as allowed_retries
from torchtally.errors import LOST, OK, SIGNALLED, Exhausted, Lost, Refused
from torchtally.log import log
from torchtally.pod import (
    address,
    attempts,
    before_launch,
    device,
    failure,
    observed_lines,
    parent_death,
    prefork,
    rendezvous,
    signals,
    termination_message,
)
from torchtally.pod.failure import Failure, Kind
from torchtally.pod.hang import Hang
from torchtally.pod.rendezvous import Rendezvous
from torchtally.pod.retries import Retries

# Below Kubernetes' default grace period of 30 s: a rank that hangs is killed by the pod, whose exit code then counts.
_SHUTDOWN_SECONDS = 20
_BESIDE = 2500  # characters of a cause, beside which the termination message has room for where the ranks stood


def launch(
    command: list[str],
    env: Mapping[str, str],
    is_complete: Callable[[Path], bool],
    module: str | None = None,
    output: Path | None = None,
    options: str | None = None,
) -> int | Callable[[], int]:
    """Run `command` once for each process of this pod under torchrun's agent.

    If the command runs main() of a `module` of this package, torch is imported once for all of them (see prefork.py).
    If `is_complete` holds for the output folder, the first pod ends without the others. `output` replaces the folder
    that the environment sets. `options` of a built-in task are reported.

    Returns:
        The exit code. In a forked rank: what runs its program and returns the rank's exit code.

    Raises:
        Refused: The environment contradicts itself, GPUs are requested and cannot be used, or there is no such program,
            or it is another launcher.
        Exhausted: The job has no retries left.
    """
    job = Job.from_env(env)
    if not shutil.which(command[0]):
        raise Refused(f"{command[0]!r} is not a program that can be run here: name one on PATH, or its path")
    before_launch.check_command(command)
    main = prefork.main_of(module, command) if module else None
    before_launch.check_environment(
        env.get("PET_RDZV_BACKEND") if job.elastic else None,
        own=main is not None,
        gpus=Places.from_env(env).device == "cuda",
    )
    observed = observes(env) and not main  # the modules of this package keep accounts
    os.environ["TORCHTALLY_OBSERVE"] = "auto" if observed else "never"

    def attempt(again: Callable[[], object]) -> int | Callable[[], int]:
        return _attempt(command, env, job, is_complete, main, output, options, again)

    with observed_lines.told(prints=not job.in_cluster) if observed else nullcontext():
        if job.elastic or allowed_retries(env) is None or not attempts.possible():
            return attempt(lambda: None)
        found: int | Callable[[], int] = attempts.run(attempt)
        return found


def _attempt(
    command: list[str],
    env: Mapping[str, str],
    job: Job,
    is_complete: Callable[[Path], bool],
    main: Callable[[], int] | None,
    output: Path | None,
    options: str | None,
    again: Callable[[], object],
) -> int | Callable[[], int]:
    """One start of the pod. Calls `again` before it ends if another one can follow in the same pod."""
    places = Places.from_env(env)
    host, port = job.master or (address.LOOPBACK, 0)
    patience = Patience.from_env(env)
    pods = None if job.elastic else Rendezvous(host, port, job.node_rank, job.max_nodes, pod_name(env), patience)
    seconds = hang_seconds(env)
    retries = Retries(env, counts=job.elastic or job.node_rank == 0)
    if job.node_rank == 0 and not job.elastic and is_complete(places.output):
        if pods:
            pods.announce_complete()
        return _report_end(retries.end(None))
    try:
        retries.begin()
    except Exhausted as sentence:
        if pods:
            pods.announce_exhausted(str(sentence))
        raise
    cpus = loky.cpu_count()
    processes, why = prefork.apart(lambda: device.count(job.processes, places.device, cpus))
    given = env.get("OMP_NUM_THREADS")
    threads = given or str(max(1, cpus // processes))
    folder = Path(tempfile.mkdtemp(prefix="torchtally-"))
    _set_environment(job, threads, folder, output or places.output)
    address.keep_on_loopback(job)
    tied = parent_death.tied(command)
    if main and prefork.fork(tied, processes, None if given else int(threads)):
        return main
    _silence_agent()
    if job.elastic:
        compat.serve_elastic_store_on(lambda host, port: address.listener(host, port, job.max_nodes))
    _report_start(job, processes, why, threads, options)
    hang = Hang(pod_name(env), folder, output or places.output, seconds, pods.share if pods else None)
    hang.start()
    watch = None
    if os.environ["TORCHTALLY_OBSERVE"] == "auto":
        watch = observed_lines.Watch(pod_name(env), metrics_port(env), prints=not job.in_cluster)
        watch.start()
    if pods:
        pods.before_kill = hang.look
        rendezvous_handler_registry.register(rendezvous.BACKEND, pods.create)
    else:
        signals.handle()
    # What comes after "--" is no option of torchrun, which would refuse the --log of a script for its own --log-dir.
    of_agent = [*_agent_options(job, processes, folder, env), "--", *_verbatim(tied)]
    try:
        ended = retries.end(_run(torchrun.parse_args(of_agent), job, pods, env))
        if hang.trained and retries.kept and not signals.came():
            again()
    except Exhausted as sentence:
        ended = Failure(Kind.KNOWN, sentence.code, str(sentence))
    if watch:
        watch.end()
    hung = hang.sentence
    told = ended is not None and failure.told(ended, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return _report_end(ended, hung, told)


def _set_environment(job: Job, threads: str, folder: Path, output: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = threads
    os.environ["TORCHTALLY_STACKS"] = str(folder)
    if "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in os.environ:  # the older name for the dump of NCCL's flight recorder
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(output / f"nccl-{pod_name()}-"))
    os.environ["TORCHTALLY_RUN"] = uuid.uuid4().hex[:12]  # an id of each start
    os.environ["TORCHTALLY_AGENT"] = str(os.getpid())  # it reports the errors of its children
    os.environ.setdefault("PET_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_SECONDS))  # PyTorch 2.11 would refuse the option
    os.environ.pop("PET_STANDALONE", None)  # the operator sets "", which torchrun takes for a number
    if job.elastic:
        # Agents that share their store name it in their first round only: a pod that joins later could not find it.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def _agent_options(job: Job, processes: int, folder: Path, env: Mapping[str, str]) -> list[str]:
    """Return torchrun's options, beside those that it reads from PET_* variables."""
    # Without signals: torchrun would restart its wait at each (see signals.py).
    options = [f"--nproc-per-node={processes}", "--no-python", "--signals-to-handle="]
    if "PET_LOG_DIR" not in env:
        options.append(f"--log-dir={folder / 'torchrun'}")
    if not job.elastic:
        host, port = job.master or (address.LOOPBACK, 0)
        options += [f"--nnodes={job.max_nodes}", f"--rdzv-backend={rendezvous.BACKEND}"]
        options += ["--node-rank=0", f"--rdzv-endpoint={host}:{port}"]  # Rendezvous knows the true rank
    if not job.in_cluster:
        options.append(f"--local-addr={address.LOOPBACK}")  # a laptop's own name may not resolve
    return options


def _verbatim(command: list[str]) -> list[str]:
    """Return the command so that the agent, which expands ${...} and $$ in arguments, passes them on unchanged."""
    program, *arguments = command
    return [program, *(argument.replace("$", "$$") for argument in arguments)]


def _run(parsed: Namespace, job: Job, pods: Rendezvous | None, env: Mapping[str, str]) -> Failure | None:
    """Run the agent to its end. Returns the failure that this pod ends with, or None after success."""
    try:
        try:
            torchrun.run(parsed)
            signals.ignore()
            if pods:
                pods.depart()
        except ChildFailedError as error:
            signals.over()
            own = failure.first(error, pod_name(env))
            own = replace(own, code=attempts.confirmed(own.code))
            return pods.cause(own) if pods else own
    except SignalException as error:
        seconds = getattr(parsed, "shutdown_timeout", _SHUTDOWN_SECONDS)
        signals.end_ranks(error.sigval, seconds)
        signals.over()
        text = f"{pod_name(env)} was stopped by signal {int(error.sigval)} ({error.sigval.name})"
        if signals.since() >= seconds:
            text += (
                f", and ranks that did not end within {seconds:g} s were killed: PET_SHUTDOWN_TIMEOUT sets these "
                "seconds, and terminationGracePeriodSeconds must be larger"
            )
        own = Failure(Kind.KNOWN, SIGNALLED + int(error.sigval), text)
        return pods.cause(own) if pods else own
    except rendezvous.Complete as sentence:
        log.info(str(sentence))
        return None
    except Lost as sentence:
        return Failure(Kind.CONSEQUENCE, LOST, str(sentence))
    except (DistError, RendezvousError) as error:
        where = "{}:{}".format(*job.master) if job.master else env.get("PET_RDZV_ENDPOINT", "this machine")
        text = f"the rendezvous at {where} failed: {str(error).splitlines()[0]}"
        return Failure(Kind.CONSEQUENCE, LOST, text)
    return None


def _silence_agent() -> None:
    """Silence the agent's log and c10d's backtraces, which would bury the message of the rank that failed."""
    agent = logging.getLogger("torch.distributed.elastic")
    agent.addHandler(logging.NullHandler())
    agent.propagate = False  # a level would not do: each logger below has its own
    compat.silence_cpp_log()


def _report_start(job: Job, processes: int, why: str, threads: str, options: str | None) -> None:
    if job.elastic:
        place = f"one of {job.min_nodes} to {job.max_nodes} pods"
    elif job.in_cluster:
        place = f"pod {job.node_rank + 1} of {job.max_nodes}"
    else:
        place = "alone, in no PyTorchJob"
    log.info(f"{pod_name()} is {place}; processes: {processes} ({why}); threads per process: {threads}")
    event = events.Started(
        node_rank=None if job.elastic else job.node_rank,
        min_pods=job.min_nodes,
        max_pods=job.max_nodes,
        processes=processes,
        threads=int(threads) if threads.isdecimal() else None,
        torchtally=version("torchtally"),
        torch=torch.__version__,
        python=platform.python_version(),
        options=options,
    )
    events.emit(event, events.Source(pod=pod_name()))


def _report_end(ended: Failure | None, hung: str | None = None, told: bool = False) -> int:
    """Report what ended the pod, unless a rank has `told` it, and where its ranks `hung`. Returns the exit code."""
    event = events.Ended(code=OK, kind=None, cause=None)
    if ended:
        text = f"{ended.text[:_BESIDE]}\nBefore: {hung}" if hung else ended.text
        termination_message.announce(text, logged=told and not hung)
        event = events.Ended(code=ended.code, kind=ended.kind.name.lower(), cause=ended.text)
    events.emit(event, events.Source(pod=pod_name()))
    return event.code
