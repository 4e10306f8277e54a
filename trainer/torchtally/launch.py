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
from torch.distributed.elastic.rendezvous import RendezvousError

from torchtally import device
from torchtally.errors import LOST, OK, SIGNALLED, Refused
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
    options = [f"--nproc-per-node={processes}", "--no-python"]
    if "PET_SHUTDOWN_TIMEOUT" not in env:
        options.append(f"--shutdown-timeout={_SHUTDOWN_SECONDS}")
    if job.master:
        address, port = job.master
        options += [f"--nnodes={job.max_nodes}", f"--node-rank={job.node_rank}"]
        options += [f"--master-addr={address}", f"--master-port={port}"]
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
        rank, failure = error.get_first_failure()
        return _exit_code(rank, failure.exitcode)
    except SignalException as error:
        return SIGNALLED + int(error.sigval)
    except (DistError, RendezvousError) as error:
        where = "{}:{}".format(*job.master) if job.master else env.get("PET_RDZV_ENDPOINT", "this machine")
        print(
            f"torchtally: the pods did not meet at {where}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True
        )
        return LOST
    return OK


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


def _exit_code(rank: int, exitcode: int) -> int:
    """A death by signal n as 128 + n, which torchrun would turn into 1."""
    if exitcode >= 0:
        return exitcode
    print(f"torchtally: rank {rank} was ended by signal {-exitcode}", file=sys.stderr, flush=True)
    return SIGNALLED - exitcode
