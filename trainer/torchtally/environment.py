"""The environment variables of a pod and of a rank, read and validated in one place.

PyTorchJob sets torchrun's PET_* and MASTER_*, WORLD_SIZE and RANK for a pod: RANK counts pods, WORLD_SIZE processes.
torchrun's agent then sets RANK, LOCAL_RANK and WORLD_SIZE for each process.
"""

import functools
import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torchtally.errors import Refused

Device = Literal["auto", "cpu", "cuda"]
ProcessCount = int | Literal["auto", "cpu", "gpu"]

# PyTorchJob sets the former only in a job with a Master, and the latter only in an elastic one.
_STATIC = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
_ELASTIC = ("PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "PET_RDZV_ID")
_OF_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A pod's place in its job. The defaults are those outside a job: one pod, no address."""

    min_nodes: int = 1
    max_nodes: int = 1
    node_rank: int = 0
    master: tuple[str, int] | None = None  # address and port; None outside a job and in an elastic one
    processes: ProcessCount = "auto"
    elastic: bool = False
    in_cluster: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Job":
        """Read PyTorchJob's variables. Raises Refused if they contradict each other."""
        elastic, static = _given(env, _ELASTIC), _given(env, _STATIC)
        nodes_text = env.get("PET_NNODES", "")
        if ":" in nodes_text:
            elastic = {"PET_NNODES": nodes_text, **elastic}
        if elastic.get("PET_RDZV_BACKEND") == "static":
            elastic = {}
        processes = _processes(env)
        if elastic and static:
            raise Refused(
                f"{_list(elastic)} ask for an elastic job and {_list(static)} for a static one: "
                "leave the Master out of a PyTorchJob with an elasticPolicy"
            )
        if elastic:
            return cls._elastic(env, nodes_text, processes)
        if static or "PET_NNODES" in env:
            return cls._static(env, processes)
        return cls(processes=processes)

    @classmethod
    def _elastic(cls, env: Mapping[str, str], nodes_text: str, processes: ProcessCount) -> "Job":
        if not env.get("PET_RDZV_ENDPOINT"):
            raise Refused(f"PET_NNODES={nodes_text} asks for an elastic job, which needs PET_RDZV_ENDPOINT=HOST:PORT")
        low, _, high = nodes_text.partition(":")
        if not (low.isdecimal() and (high or low).isdecimal() and 1 <= int(low) <= int(high or low)):
            raise Refused(f"PET_NNODES={nodes_text!r} must be MIN:MAX, whole numbers with 1 <= MIN <= MAX")
        _, colon, port = env["PET_RDZV_ENDPOINT"].rpartition(":")
        if colon and not (port.isdecimal() and 0 < int(port) < 65536):
            raise Refused(
                f"PET_RDZV_ENDPOINT={env['PET_RDZV_ENDPOINT']!r} must be HOST:PORT with a port from 1 to 65535"
            )
        _number(env, "PET_MAX_RESTARTS", 0, 1 << 31)
        return cls(min_nodes=int(low), max_nodes=int(high or low), processes=processes, elastic=True, in_cluster=True)

    @classmethod
    def _static(cls, env: Mapping[str, str], processes: ProcessCount) -> "Job":
        for plain, pet in (
            ("MASTER_ADDR", "PET_MASTER_ADDR"),
            ("MASTER_PORT", "PET_MASTER_PORT"),
            ("RANK", "PET_NODE_RANK"),
        ):
            if plain in env and pet in env and env[plain] != env[pet]:
                raise Refused(f"{plain}={env[plain]} and {pet}={env[pet]} must be equal")
        ports = [_number(env, name, 1, 65535) for name in ("MASTER_PORT", "PET_MASTER_PORT")]
        address, port = env.get("MASTER_ADDR") or env.get("PET_MASTER_ADDR"), ports[0] or ports[1]
        world = _number(env, "WORLD_SIZE", 1, 1 << 31)
        nodes = _number(env, "PET_NNODES", 1, 1 << 31)
        rank = _number(env, "RANK", 0, 1 << 31)
        node_rank = _number(env, "PET_NODE_RANK", 0, 1 << 31)
        rank = node_rank if rank is None else rank
        if world is not None and rank is not None and rank >= world:
            raise Refused(f"RANK={rank} must be below WORLD_SIZE={world}")
        if nodes is None:
            if world is not None and world > 1:
                raise Refused(
                    f"WORLD_SIZE={world} counts processes, not pods, and PET_NNODES is not set: "
                    "set PET_NNODES to the number of pods"
                )
            nodes = 1
        if rank is not None and rank >= nodes:
            raise Refused(f"RANK={rank} must be below PET_NNODES={nodes}: it counts pods")
        # The operator counts `auto`, `cpu` and `gpu` as one process, so only a number can contradict WORLD_SIZE.
        if world is not None and isinstance(processes, int) and world != nodes * processes:
            raise Refused(
                f"WORLD_SIZE={world} must be PET_NNODES={nodes} times PET_NPROC_PER_NODE={processes}, "
                f"which is {nodes * processes}"
            )
        if nodes > 1:
            for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port), ("RANK", rank)):
                if value is None:
                    raise Refused(f"PET_NNODES={nodes} needs {name}, which is not set")
        return cls(
            min_nodes=nodes,
            max_nodes=nodes,
            node_rank=rank or 0,
            master=(address, port) if address and port else None,
            processes=processes,
            in_cluster=True,
        )


@dataclass(frozen=True, kw_only=True)
class Process:
    """A rank's place, as torchrun's agent sets it."""

    rank: int
    local_rank: int
    local_world: int  # ranks of this pod
    world: int
    run: str  # the run's id as drawn by this pod's entry point, or by this process; all ranks adopt rank 0's
    attempt: int
    pod: str

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Process":
        """Read the variables that torchrun's agent and the entry point set. Raises Refused if one is not set."""
        if missing := [name for name in _OF_RANK if name not in env]:
            raise Refused(
                f"not set: {', '.join(missing)}; start the program with `torchtally run -- COMMAND` or torchrun, which "
                "set them"
            )
        return cls.of_group(int(env["RANK"]), int(env["WORLD_SIZE"]), env)

    @classmethod
    def of_group(cls, rank: int, world: int, env: Mapping[str, str]) -> "Process":
        """The place of a rank of a process group. Without a launcher, all ranks are on one machine. Raises Refused."""
        return cls(
            rank=rank,
            local_rank=_counted(env, "LOCAL_RANK", rank),
            local_world=_counted(env, "LOCAL_WORLD_SIZE", world),
            world=world,
            run=env.get("TORCHTALLY_RUN") or _drawn(),
            attempt=_counted(env, "TORCHELASTIC_RESTART_COUNT", 0),
            pod=pod_name(env),
        )


@dataclass(frozen=True, kw_only=True)
class Places:
    """Folders and device that the environment sets; options override them."""

    data: Path | None
    cache: Path
    output: Path
    device: Device

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Places":
        device = env.get("TORCHTALLY_DEVICE") or "auto"
        if device not in get_args(Device):
            raise Refused(f"TORCHTALLY_DEVICE={device!r} must be one of {', '.join(get_args(Device))}")
        # A container with GPUs has requested them; the image's default is `void`.
        if device == "auto" and env.get("NVIDIA_VISIBLE_DEVICES", "void") not in ("", "void", "none"):
            device = "cuda"
        home_cache = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(
            data=Path(env["TORCHTALLY_DATA"]) if env.get("TORCHTALLY_DATA") else None,
            cache=Path(env.get("TORCHTALLY_CACHE") or home_cache / "torchtally"),
            output=Path(env.get("TORCHTALLY_OUTPUT") or "output"),
            device=device,  # type: ignore[arg-type]  # checked above
        )


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds that a pod waits for others before it draws a conclusion."""

    silence: float = 60  # without a heartbeat until a pod counts as lost; frozen for half of it, it continues
    grace: float = 30  # for a rank to notice that a peer is gone, and to finish its writes; then it is killed
    cause: float = 5  # for another pod to tell a cause, before an unexplained failure counts as the cause

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Patience":
        """Read the variables of a job. Raises Refused."""
        return cls(
            silence=_seconds(env, "TORCHTALLY_SILENCE_SECONDS", f"{cls.silence}", 2),  # heartbeats are a second apart
            grace=_seconds(env, "TORCHTALLY_GRACE_SECONDS", f"{cls.grace}"),
            cause=_seconds(env, "TORCHTALLY_CAUSE_SECONDS", f"{cls.cause}"),
        )


def store_address(env: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Address and port of the job's store, as torchrun's agent sets them for each rank."""
    return env["MASTER_ADDR"], int(env["MASTER_PORT"])


def pod_name(env: Mapping[str, str] = os.environ) -> str:
    """The pod's name, which Kubernetes sets as its host name."""
    return env.get("HOSTNAME") or socket.gethostname()


def pod_of(rank: int, env: Mapping[str, str] = os.environ) -> str | None:
    """The name of the pod of `rank`, if the rendezvous has published the names; all pods have as many ranks."""
    try:
        pods: list[str] = json.loads(Path(env["TORCHTALLY_PODS"]).read_text())
    except (KeyError, OSError):
        return None
    pod = rank // int(env.get("LOCAL_WORLD_SIZE") or "1")
    return pods[pod] if pod < len(pods) else None


def job_address(env: Mapping[str, str] = os.environ) -> str | None:
    """The rendezvous address, which is the same in all pods of a job; None outside a job."""
    if endpoint := env.get("PET_RDZV_ENDPOINT"):
        return endpoint
    address = env.get("PET_MASTER_ADDR")
    return f"{address}:{env.get('PET_MASTER_PORT')}" if address else None


def job_host(env: Mapping[str, str] = os.environ) -> str | None:
    """The host of the rendezvous address."""
    address = job_address(env) or ""
    return address.rpartition(":")[0].strip("[]") or address or None


def trusts_network(env: Mapping[str, str] = os.environ) -> bool:
    """Whether somebody has said that only the job's pods reach their ports. Raises Refused."""
    value = env.get("TORCHTALLY_TRUSTED_NETWORK") or "false"
    if value not in ("true", "false"):
        raise Refused(f"TORCHTALLY_TRUSTED_NETWORK={value!r} must be true or false")
    return value == "true"


def variable(name: str, env: Mapping[str, str] = os.environ) -> str | None:
    """The text of a variable; None if it is empty or not set."""
    return env.get(name) or None


def metrics_port(env: Mapping[str, str] = os.environ) -> int | None:
    """The port of a pod's metrics; None if they are not requested. Raises Refused."""
    return _number(env, "TORCHTALLY_METRICS_PORT", 1, 65535)


def progress_seconds(env: Mapping[str, str] = os.environ) -> float:
    """Seconds between two reports of a pod's progress. Raises Refused."""
    return _seconds(env, "TORCHTALLY_PROGRESS_SECONDS", "10")


def hang_seconds(env: Mapping[str, str] = os.environ) -> float:
    """Seconds without a sample until the ranks of a pod count as hanging; 0 for never. Raises Refused."""
    return _seconds(env, "TORCHTALLY_HANG_SECONDS", "240")


def call_seconds(env: Mapping[str, str] = os.environ) -> float:
    """Seconds that ranks wait in a call of all ranks for those that do not make it. Raises Refused."""
    return _seconds(env, "TORCHTALLY_CALL_SECONDS", "300", 1)


def preflight_mode(env: Mapping[str, str] = os.environ) -> Literal["report", "refuse"] | None:
    """Whether the pods are checked before the first step, and what a slow one means. Raises Refused."""
    match env.get("TORCHTALLY_PREFLIGHT") or None:
        case None:
            return None
        case ("report" | "refuse") as mode:
            return mode
        case other:
            raise Refused(f"TORCHTALLY_PREFLIGHT={other!r} must be report or refuse")


def has_entry_point(env: Mapping[str, str] = os.environ) -> bool:
    """Whether `torchtally run` has started this rank: Spark and plain torchrun report no cause of a failure."""
    return "TORCHTALLY_RUN" in env


def observes(env: Mapping[str, str]) -> bool:
    """Whether the loaders of a program that keeps no account are observed. Raises Refused."""
    value = env.get("TORCHTALLY_OBSERVE") or "auto"
    if value not in ("auto", "never"):
        raise Refused(f"TORCHTALLY_OBSERVE={value!r} must be auto or never")
    return value == "auto"


def retries(env: Mapping[str, str] = os.environ) -> int | None:
    """Retries without progress that the job has; None if its controller bounds them. Raises Refused."""
    return _number(env, "TORCHTALLY_RETRIES", 0, 1 << 31)


def termination_log(env: Mapping[str, str] = os.environ) -> Path:
    """Kubernetes' file for a container's termination message; the variable follows terminationMessagePath."""
    return Path(env.get("TORCHTALLY_TERMINATION_LOG") or "/dev/termination-log")


@functools.cache
def _drawn() -> str:
    """A run's id, the same for all accounts of this process."""
    return uuid.uuid4().hex[:12]


def _given(env: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: env[name] for name in names if env.get(name)}


def _list(variables: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items())


def _number(env: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    if not text.isdecimal() or not low <= int(text) <= high:
        raise Refused(f"{name}={text!r} must be a whole number from {low} to {high}")
    return int(text)


def _counted(env: Mapping[str, str], name: str, default: int) -> int:
    number = _number(env, name, 0, 1 << 31)
    return default if number is None else number


def _seconds(env: Mapping[str, str], name: str, default: str, low: float = 0) -> float:
    text = env.get(name) or default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not low <= seconds < float("inf"):
        raise Refused(f"{name}={text!r} must be a number of seconds from {low}")
    return seconds


def _processes(env: Mapping[str, str]) -> ProcessCount:
    text = env.get("PET_NPROC_PER_NODE") or "auto"
    if text in ("auto", "cpu", "gpu"):
        return text  # type: ignore[return-value]  # one of the three literals
    if not text.isdecimal() or int(text) < 1:
        raise Refused(f"PET_NPROC_PER_NODE={text!r} must be a whole number of at least 1, or auto, cpu or gpu")
    return int(text)
