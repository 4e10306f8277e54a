"""What befalls a job. A fault is a function of its namespace that does it, and returns when: seconds since 1970."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nodes
from cluster import CHART, KIND_VALUES, Namespace, args, data_values, run, wait_for

from torchtally import events

Fault = Callable[[Namespace], float]

MASTER = "demo-master-0"
PODS = [MASTER, "demo-worker-0", "demo-worker-1", "demo-worker-2"]
EPOCHS = 3

# The moments of inside.py.
DATA, RENDEZVOUS, SAVE = "data", "rendezvous", "save"
MID_EPOCH, LAST_STEP = "mid-epoch:2", f"last-step:{EPOCHS}"
LATER = "mid-epoch:3"

_TRAINING = args("--epochs", str(EPOCHS), "--batch-size", "125", "--save-seconds", "0.2")
_INSIDE = (Path(__file__).parent / "inside.py").read_text()


def train(namespace: Namespace, *options: str) -> None:
    namespace.install(*KIND_VALUES, *data_values(), *_TRAINING, *options)


def weights(namespace: Namespace) -> str:
    """Their hash, as the master reports it, once the job has succeeded."""
    namespace.wait_for_job("demo", "Succeeded")
    (found,) = {event.model for event in namespace.reported(MASTER, events.Complete)}
    assert found
    return found


def inside(namespace: Namespace, pod: str, *arguments: str) -> tuple[float | None, str]:
    """Run inside.py in the pod's first container, once; returns when it did its deed, and what it complained of."""
    command = ["exec", "--stdin", pod, "--", "python", "-", *arguments]
    result = run("kubectl", "--namespace", namespace.name, *command, check=False, text=_INSIDE)
    found = re.search(r"^at (\S+)$", result.stdout, re.MULTILINE)
    return float(found[1]) if found else None, result.stderr


def act(namespace: Namespace, pod: str, *arguments: str) -> float:
    """Do it in the pod, as soon as its container runs; returns when it was done."""
    complaint = ""

    def done() -> float | None:
        nonlocal complaint
        when, complaint = inside(namespace, pod, *arguments)
        assert "in vain" not in complaint, complaint
        return when

    return wait_for(f"{pod} to {' '.join(arguments)}", done)


@contextmanager
def held(namespace: Namespace, pod: str, moment: str) -> Iterator[None]:
    """The training stands still at this moment, seen in `pod` where it is a pod's own, and else in the master."""
    where = pod if moment in (DATA, RENDEZVOUS) else MASTER
    part = _part(moment)
    act(namespace, where, "stop", part, moment)
    if moment == DATA:
        nodes.let_data_through(namespace)
    try:
        yield
    finally:
        inside(namespace, where, "go", part)  # unless it is gone


def kill(pod: str, moment: str) -> Fault:
    """SIGKILL to the pod's rank; to its agent where there is no rank yet."""

    def fault(namespace: Namespace) -> float:
        with held(namespace, pod, moment):
            return _kill(namespace, pod, _part(moment))

    return fault


def _part(moment: str) -> str:
    return "agent" if moment == RENDEZVOUS else "ranks"


def _kill(namespace: Namespace, pod: str, part: str, moment: str = "any") -> float:
    when, complaint = inside(namespace, pod, "kill", part, moment)
    assert when, complaint
    return when


def delete(pod: str, moment: str) -> Fault:
    def fault(namespace: Namespace) -> float:
        with held(namespace, pod, moment):
            namespace.kubectl("delete", "pod", pod, "--wait=false")
            return time.time()

    return fault


def kill_the_master_alone(namespace: Namespace) -> float:
    """Its agent, when its rank and all workers have done their part; `lingering` keeps it until then."""
    workers = set(PODS) - {MASTER}

    def ended() -> bool:
        pods = namespace.list("pod")  # not all of them at once
        return {name for name, pod in pods.items() if pod["status"]["phase"] == "Succeeded"} >= workers

    wait_for("the workers to have ended", ended)
    return _kill(namespace, MASTER, "agent", "lingering")


@contextmanager
def lingering(namespace: Namespace) -> Iterator[list[str]]:
    """The options of a job whose master's agent stays when it has done everything, until it is killed."""
    file = Path(__file__).parent / "linger.py"
    python_path = '[{"name": "PYTHONPATH", "value": "/files"}]'
    yield ["--set-file", f"files.sitecustomize\\.py={file}", "--set-json", f"env={python_path}"]


def kill_twice(namespace: Namespace) -> float:
    kill("demo-worker-0", MID_EPOCH)(namespace)
    return kill(MASTER, LATER)(namespace)


def exhaust_memory(namespace: Namespace) -> float:
    with held(namespace, MASTER, MID_EPOCH):
        when = act(namespace, "demo-worker-1", "exhaust")

    def ended() -> dict[str, object] | None:
        (status,) = namespace.list("pod")["demo-worker-1"]["status"]["containerStatuses"]
        found: dict[str, object] | None = status["lastState"].get("terminated")
        return found

    assert wait_for("the container to have ended", ended)["reason"] == "OOMKilled"
    return when


def fill_the_volume(namespace: Namespace) -> float:
    """Until a checkpoint could not be written."""
    when = act(namespace, MASTER, "fill", MID_EPOCH)
    wait_for("a checkpoint to fail", lambda: namespace.reported(MASTER, events.SaveFailed))
    wait_for("checkpoints to be written again", lambda: _saves_again(namespace))
    return when


def _saves_again(namespace: Namespace) -> bool:
    kinds = [type(record.event) for record in events.in_lines(namespace.log(MASTER).split("\n"))]
    saves = [kind for kind in kinds if kind in (events.Saved, events.SaveFailed)]
    return saves[-1] is events.Saved


def freeze(pod: str, seconds: int = 30) -> Fault:
    """All processes of the pod."""

    def fault(namespace: Namespace) -> float:
        if pod == MASTER:
            when = act(namespace, pod, "stop", "all", MID_EPOCH)
        else:
            with held(namespace, MASTER, MID_EPOCH):
                when = act(namespace, pod, "stop", "all", "any")
        time.sleep(max(0.0, when + seconds - time.time()))
        act(namespace, pod, "go", "all")
        return when

    return fault


def forget_the_master_s_name(namespace: Namespace) -> float:
    """For 20 s; a worker is killed in them, so that all have to find the master again."""

    def select(selector: str) -> None:
        namespace.kubectl("patch", "service", MASTER, "--type=json", f"--patch={selector}")

    path = "/spec/selector/nobody"
    with held(namespace, MASTER, MID_EPOCH):
        select(f'[{{"op": "add", "path": "{path}", "value": "here"}}]')
        gone = act(namespace, "demo-worker-2", "forget", MASTER)
        when = _kill(namespace, "demo-worker-1", "ranks")
    time.sleep(max(0.0, gone + 20 - time.time()))
    select(f'[{{"op": "remove", "path": "{path}"}}]')
    return when


def suspend(namespace: Namespace) -> None:
    _set_suspend(namespace, "true")


def resume(namespace: Namespace) -> None:
    wait_for("the pods to be gone", lambda: not namespace.list("pod"))
    _set_suspend(namespace, "false")


def _set_suspend(namespace: Namespace, value: str) -> None:
    patch = f'{{"spec": {{"runPolicy": {{"suspend": {value}}}}}}}'
    namespace.kubectl("patch", "pytorchjob", "demo", "--type=merge", f"--patch={patch}")


def suspend_and_resume(namespace: Namespace) -> float:
    with held(namespace, MASTER, MID_EPOCH):
        when = time.time()
        suspend(namespace)
    resume(namespace)
    return when


def continue_with_fewer_pods(moment: str) -> Fault:
    """Suspend the job, and resume it with 2 workers."""

    def upgrade(namespace: Namespace, values: str) -> None:
        namespace.helm("upgrade", "demo", str(CHART), "--reuse-values", "--set", values)

    def fault(namespace: Namespace) -> float:
        with held(namespace, MASTER, moment):
            when = time.time()
            upgrade(namespace, "suspend=true")
        wait_for("the pods to be gone", lambda: not namespace.list("pod"))
        upgrade(namespace, "suspend=false,workers=2")
        return when

    return fault


def drain_a_node(namespace: Namespace, moment: str = MID_EPOCH) -> float:
    with held(namespace, MASTER, moment):
        node, when = nodes.without_the_master(namespace), time.time()
        nodes.drain(node, wait=False)
    nodes.drain(node)
    return when


def stop_a_node_and_start_it(namespace: Namespace) -> float:
    node, when = _stop_one_with_workers_alone(namespace)
    nodes.wait_until_missed(node)
    nodes.start(node)
    return when


def stop_for_good(namespace: Namespace) -> float:
    node, when = _stop_one_with_workers_alone(namespace)
    _move(namespace, node)
    return when


def stop_the_master_s_for_good(namespace: Namespace) -> float:
    act(namespace, MASTER, "stop", "ranks", MID_EPOCH)
    node, when = nodes.of(namespace, MASTER), time.time()
    nodes.stop(node)
    _move(namespace, node)
    return when


def _stop_one_with_workers_alone(namespace: Namespace) -> tuple[str, float]:
    with held(namespace, MASTER, MID_EPOCH):
        node, when = nodes.without_the_master(namespace), time.time()
        nodes.stop(node)
    return node, when


def _move(namespace: Namespace, node: str) -> None:
    """Nobody can know whether the pods of a node that is gone still run: the operator waits until it is told."""
    lost = {pod: uid for pod, uid in namespace.uids().items() if nodes.of(namespace, pod) == node}
    nodes.wait_until_missed(node)
    assert lost.items() <= namespace.uids().items()  # the others may have been made anew meanwhile
    nodes.give_up(node)
    nodes.wait_for_no_pods_on(node, namespace)
