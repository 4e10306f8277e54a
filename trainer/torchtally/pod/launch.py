"""The entry point: the pod's job -> torchrun's agent -> an exit code that Kubernetes understands."""

import contextlib
import ctypes
import logging
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import loky
import torch
from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, rendezvous_handler_registry

from torchtally import events
from torchtally.environment import Job, Places, pod_name
from torchtally.errors import LOST, OK, SIGNALLED, Lost, Refused
from torchtally.pod import device, failure, prefork, rendezvous, signals, termination_message

# Below Kubernetes' default grace of 30 s, so that a rank that hangs is ended by us and the exit code is ours.
_SHUTDOWN_SECONDS = 20


def launch(
    command: list[str], env: Mapping[str, str], is_complete: Callable[[Path], bool], module: str | None = None
) -> int:
    """Run `command` once for each process of this pod under torchrun's agent; returns the exit code.

    Where it runs main() of a `module` of ours, torch is imported once for all of them (see prefork.py).
    Where `is_complete` says of the output folder that nothing is left to do, the first pod ends without the others.
    Raises Refused for an environment that contradicts itself and for GPUs that were asked for and cannot be used.
    """
    job = Job.from_env(env)
    places = Places.from_env(env)
    others = None
    if job.master:
        others = rendezvous.Peers(*job.master, job.node_rank, job.max_nodes, pod_name(env))
    if job.node_rank == 0 and not job.elastic and is_complete(places.output):
        if others:
            others.tell_complete()
        return _end(None)
    cpus = loky.cpu_count()
    processes, why = prefork.apart(lambda: device.count(job.processes, places.device, cpus))
    given = env.get("OMP_NUM_THREADS")
    threads = given or str(max(1, cpus // processes))
    os.environ["OMP_NUM_THREADS"] = threads
    os.environ["TORCHTALLY_RUN"] = uuid.uuid4().hex[:12]
    os.environ.pop("PET_STANDALONE", None)  # the operator injects "", which torchrun takes for a number
    # Signals are ours (see signals.py): torchrun would begin its wait anew at each.
    options = [f"--nproc-per-node={processes}", "--no-python", "--signals-to-handle="]
    program, *arguments = command
    if module:
        prefork.fork(module, command, processes, None if given else int(threads))
    elif not shutil.which(program):
        raise Refused(f"{program!r} is no program that can be run here")
    _quieten()
    _say(job, processes, why, threads)
    if "PET_SHUTDOWN_TIMEOUT" not in env:
        options.append(f"--shutdown-timeout={_SHUTDOWN_SECONDS}")
    if others and job.master:
        rendezvous_handler_registry.register(rendezvous.BACKEND, others.create)
        options += [
            f"--nnodes={job.max_nodes}",
            f"--rdzv-backend={rendezvous.BACKEND}",
            "--node-rank=0",
        ]  # the rank is ours
        options.append("--rdzv-endpoint={}:{}".format(*job.master))
    else:
        signals.handle()
    if job.elastic:
        # Agents that share their store name it in their first round alone: a pod that comes later would ask in vain.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if not job.in_cluster:
        options.append("--local-addr=127.0.0.1")  # a laptop's own name need not resolve
    # The agent fills ${...} macros of its own into arguments and takes $$ for $; a user's are handed on as they are.
    verbatim = [argument.replace("$", "$$") for argument in arguments]
    parsed = torchrun.parse_args([*options, program, *verbatim])
    ended: failure.Failure | None = None
    try:
        try:
            torchrun.run(parsed)
            signals.ignore()
        except ChildFailedError as error:
            signals.over()
            ended = failure.first(error, pod_name(env))
    except SignalException as error:
        signals.end_ranks(error.sigval, parsed.shutdown_timeout)
        signals.over()
        text = f"{pod_name(env)} was stopped by signal {int(error.sigval)} ({error.sigval.name})"
        ended = failure.Failure(failure.Kind.KNOWN, SIGNALLED + int(error.sigval), text)
    except rendezvous.Complete:
        print("torchtally: the run is complete", file=sys.stderr, flush=True)
        return _end(None)
    except Lost as sentence:
        return _end(failure.Failure(failure.Kind.CONSEQUENCE, LOST, str(sentence)))
    except (DistError, RendezvousError) as error:
        where = "{}:{}".format(*job.master) if job.master else env.get("PET_RDZV_ENDPOINT", "this machine")
        text = f"the pods did not meet at {where}: {str(error).splitlines()[0]}"
        return _end(failure.Failure(failure.Kind.CONSEQUENCE, LOST, text))
    if ended is None:
        if others:
            others.leave()
        return _end(None)
    if others:
        ended = others.cause(ended)
    return _end(ended)


def _quieten() -> None:
    """Silence the agent's log and the backtraces of c10d, which would bury the message of the rank that failed."""
    log = logging.getLogger("torch.distributed.elastic")
    log.addHandler(logging.NullHandler())
    log.propagate = False  # and no level: each logger below has its own
    if "TORCH_CPP_LOG_LEVEL" not in os.environ:
        os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
        with contextlib.suppress(OSError, AttributeError):  # of a build that names it otherwise
            # c10::initLogging(), which reads the variable; on import, the ranks that are forked would share it.
            ctypes.CDLL(str(next(Path(torch.__file__).parent.glob("lib/libc10.*"))))._ZN3c1011initLoggingEv()
        del os.environ["TORCH_CPP_LOG_LEVEL"]  # a rank's own affair


def _end(ended: failure.Failure | None) -> int:
    """Say what ended the pod, and report it; returns the exit code."""
    event = events.Ended(code=OK, kind=None, cause=None)
    if ended:
        termination_message.say(ended.text)
        event = events.Ended(code=ended.code, kind=ended.kind.name.lower(), cause=ended.text)
    events.emit(event, events.Source(pod=pod_name()))
    return event.code


def _say(job: Job, processes: int, why: str, threads: str) -> None:
    if job.elastic:
        place = f"one of {job.min_nodes} to {job.max_nodes} pods"
    elif job.in_cluster:
        place = f"pod {job.node_rank + 1} of {job.max_nodes}"
    else:
        place = "alone, in no PyTorchJob"
    print(
        f"torchtally: {pod_name()} is {place}; processes: {processes} ({why}); threads a process: {threads}",
        file=sys.stderr,
        flush=True,
    )
    event = events.Started(
        node_rank=None if job.elastic else job.node_rank,
        min_pods=job.min_nodes,
        max_pods=job.max_nodes,
        processes=processes,
        threads=int(threads) if threads.isdecimal() else None,
        torchtally=version("torchtally"),
        torch=torch.__version__,
        python=platform.python_version(),
    )
    events.emit(event, events.Source(pod=pod_name()))
