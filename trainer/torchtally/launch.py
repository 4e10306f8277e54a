"""The entry point: the pod's job -> torchrun's agent -> an exit code that Kubernetes understands."""

import logging
import os
import shutil
import sys
import uuid
from collections.abc import Mapping

import loky
from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, rendezvous_handler_registry

from torchtally import device, failure, farewell, peers, stopping
from torchtally.errors import LOST, OK, SIGNALLED, Lost, Refused
from torchtally.job import Job, Places, pod_name

# Below Kubernetes' default grace of 30 s, so that a rank that hangs is ended by us and the exit code is ours.
_SHUTDOWN_SECONDS = 20


def launch(command: list[str], env: Mapping[str, str]) -> int:
    """Run `command` once for each process of this pod under torchrun's agent; returns the exit code.

    Raises Refused for an environment that contradicts itself and for GPUs that were asked for and cannot be used.
    """
    job = Job.from_env(env)
    places = Places.from_env(env)
    cpus = loky.cpu_count()
    processes, why = device.count(job.processes, places.device, cpus)
    threads = env.get("OMP_NUM_THREADS") or str(max(1, cpus // processes))
    _say(job, processes, why, threads)

    os.environ["OMP_NUM_THREADS"] = threads
    os.environ["TORCHTALLY_RUN"] = uuid.uuid4().hex[:12]
    os.environ.pop("PET_STANDALONE", None)  # the operator injects "", which torchrun takes for a number
    # Signals are ours (see stopping.py): torchrun would begin its wait anew at each.
    options = [f"--nproc-per-node={processes}", "--no-python", "--signals-to-handle="]
    if "PET_SHUTDOWN_TIMEOUT" not in env:
        options.append(f"--shutdown-timeout={_SHUTDOWN_SECONDS}")
    others = None
    if job.master:
        address, port = job.master
        others = peers.Peers(address, port, job.node_rank, job.max_nodes, pod_name(env))
        rendezvous_handler_registry.register(peers.BACKEND, others.create)
        options += [f"--nnodes={job.max_nodes}", f"--rdzv-backend={peers.BACKEND}"]
        options += [f"--rdzv-endpoint={address}:{port}", "--node-rank=0"]  # ours; torchrun warns of PET_NODE_RANK
    else:
        stopping.handle()
    if not job.in_cluster:
        options.append("--local-addr=127.0.0.1")  # a laptop's own name need not resolve
    # A rank says itself what went wrong; the agent's reports would bury that.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # The agent fills ${...} macros of its own into arguments and takes $$ for $; a user's are handed on as they are.
    program, *arguments = command
    if not shutil.which(program):
        raise Refused(f"{program!r} is no program that can be run here")
    verbatim = [argument.replace("$", "$$") for argument in arguments]
    try:
        torchrun.run(torchrun.parse_args([*options, program, *verbatim]))
    except ChildFailedError as error:
        ended = failure.first(error, pod_name(env))
    except SignalException as error:
        text = f"{pod_name(env)} was stopped by signal {int(error.sigval)} ({error.sigval.name})"
        ended = failure.Failure(failure.Kind.KNOWN, SIGNALLED + int(error.sigval), text)
    except Lost as sentence:
        return _end(str(sentence), LOST)
    except (DistError, RendezvousError) as error:
        where = "{}:{}".format(*job.master) if job.master else env.get("PET_RDZV_ENDPOINT", "this machine")
        return _end(f"the pods did not meet at {where}: {str(error).splitlines()[0]}", LOST)
    else:
        if others:
            others.leave()
        return OK
    stopping.over()
    if others:
        ended = others.cause(ended)
    return _end(ended.text, ended.code)


def _end(sentence: str, code: int) -> int:
    farewell.say(sentence)
    return code


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
