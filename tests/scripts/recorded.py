"""Pods, events and logs in the shape that the API server gives them, made from seconds since the job's creation."""

from datetime import UTC, datetime, timedelta
from typing import Any

from phases.read import Job, Object, Pod, lines, moment

_CREATED = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
IMAGE = "localhost:5000/torchtally:cpu"
PRESENT = f'Container image "{IMAGE}" already present on machine'
CONDITIONS = [("PodScheduled", 2), ("PodReadyToStartContainers", 4), ("Initialized", 8), ("Ready", 10)]


def at(seconds: float) -> str:
    """Whole seconds as in objects, others as in logs."""
    stamp = (_CREATED + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{stamp}Z" if seconds == int(seconds) else f"{stamp}.{round(seconds % 1 * 1e9):09d}Z"


def event(reason: str, seconds: int, message: str, container: str = "pytorch", kind: str = "containers") -> Object:
    return {
        "metadata": {"name": f"pod.{reason}.{seconds}", "namespace": "trial"},
        "involvedObject": {"kind": "Pod", "fieldPath": f"spec.{kind}{{{container}}}"},
        "reason": reason,
        "message": message,
        "firstTimestamp": at(seconds),
        "lastTimestamp": at(seconds),
        "eventTime": None,
        "count": 1,
        "type": "Normal",
        "source": {"component": "kubelet", "host": "kind-worker"},
    }


def init_container(state: Object) -> Object:
    return {"name": "init-pytorch", "image": "alpine:3.10", "ready": True, "restartCount": 0, "state": state}


def status(started: int, restarts: int = 0, previous: int | None = None) -> Object:
    """Of the training's container, which runs since `started`, and ran once since `previous`."""
    last: Object = {}
    if previous is not None:
        last = {
            "terminated": {"exitCode": 203, "reason": "Error", "startedAt": at(previous), "finishedAt": at(started)}
        }
    running = {"running": {"startedAt": at(started)}}
    return {"name": "pytorch", "image": IMAGE, "restartCount": restarts, "state": running, "lastState": last}


def master() -> Pod:
    """It waits for a volume, pulls its image for 2.5 s, and makes the first step."""
    found = _found("demo-master-0", 1, [("PodScheduled", 5), ("Initialized", 5), ("Ready", 10)])
    found["status"]["containerStatuses"] = [status(9)]
    pulled = f'Successfully pulled image "{IMAGE}" in 1.5s (2.5s including waiting). Image size: 453000000 bytes.'
    events = [event("Pulling", 6, f'Pulling image "{IMAGE}"'), event("Pulled", 8, pulled)]
    events += [event("Created", 8, "Created container: pytorch"), event("Started", 9, "Started container pytorch")]
    log = f"{at(12.25)} torchtally: demo-master-0 is pod 1 of 4; processes: 1 (CPU); threads per process: 1\n"
    log += f"{at(18)} torchtally: rank 0 has 60000 samples to train with and 10000 to test with, after 1.5 s\n"
    log += f"{at(20.5)} torchtally: run 3f9c2a7b10de begins: 60000 samples an epoch, 4 ranks\n{at(31.5)} epoch 1/2: …\n"
    return Pod(name="demo-master-0", found=found, events=events, log=lines(log))


def worker(index: int = 0) -> Pod:
    """It has an init container, and the image already."""
    name = f"demo-worker-{index}"
    found = _found(name, 1, CONDITIONS)
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": at(5), "finishedAt": at(10)}}
    found["status"] |= {"initContainerStatuses": [init_container(ended)], "containerStatuses": [status(11)]}
    first = 'Container image "alpine:3.10" already present on machine'
    events = [event("Pulled", 4, first, "init-pytorch", "initContainers")]
    events += [event("Started", 5, "Started container init-pytorch", "init-pytorch", "initContainers")]
    events += [event("Pulled", 10, PRESENT), event("Started", 11, "Started container pytorch")]
    log = f"{at(15.5)} torchtally: {name} is pod {index + 2} of 4; processes: 1 (CPU); threads per process: 1\n"
    log += (
        f"{at(17)} torchtally: rank {index + 1} has 60000 samples to train with and 10000 to test with, after 0.5 s\n"
    )
    return Pod(name=name, found=found, events=events, log=lines(log))


def pending(index: int, conditions: list[Object], *containers: Object) -> Pod:
    """A worker that does not run."""
    found = _found(f"demo-worker-{index}", 1, [])
    found["status"] |= {"phase": "Pending", "conditions": conditions, "initContainerStatuses": list(containers)}
    return Pod(name=f"demo-worker-{index}", found=found, events=[], log=[])


def job(*pods: Pod, state: str = "Running") -> Job:
    return Job(name="demo", namespace="trial", state=state, created=moment(at(0)), container="pytorch", pods=list(pods))


def _found(name: str, created: int, conditions: list[tuple[str, int]]) -> dict[str, Any]:
    holding = [{"type": kind, "status": "True", "lastTransitionTime": at(seconds)} for kind, seconds in conditions]
    return {
        "metadata": {"name": name, "namespace": "trial", "uid": f"uid-{name}", "creationTimestamp": at(created)},
        "spec": {"containers": [{"name": "pytorch", "image": IMAGE}]},
        "status": {"phase": "Running", "conditions": holding},
    }
