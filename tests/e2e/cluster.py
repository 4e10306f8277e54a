"""A namespace of a cluster as the tests see it: helm and kubectl in it, and waiting for what has to come true."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torchtally import events

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/torchtally"
KIND_VALUES = ["--values", str(CHART / "ci/kind-values.yaml")]
CONTAINER = "pytorch"
LABEL = "torchtally-e2e=true"
LIMIT = 600  # seconds, on a machine that does much else

Object = dict[str, Any]
Result = TypeVar("Result")
Event = TypeVar("Event", bound=events.Event)


def run(*command: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LIMIT)
    assert not check or result.returncode == 0, f"{' '.join(command)}: {result.stdout}{result.stderr}"
    return result


def script(name: str, *arguments: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """One of scripts/."""
    return run(sys.executable, str(ROOT / "scripts" / name), *arguments, check=check, text=text)


def wait_for(what: str, ask: Callable[[], Result | None]) -> Result:
    """What `ask` returns once that is true."""
    end = time.monotonic() + LIMIT
    while not (answer := ask()):
        assert time.monotonic() < end, f"waited {LIMIT} s in vain for {what}"
        time.sleep(1)
    return answer


def stays(what: str, seconds: int, ask: Callable[[], bool]) -> None:
    """Nothing but time can tell that a thing does not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert ask(), f"no longer: {what}"
        time.sleep(1)


def image_parts(image: str | None = None) -> dict[str, str]:
    """The chart's `image` values for this image, or for the one under test."""
    repository, _, digest = (image or os.environ["E2E_IMAGE"]).partition("@")
    head, _, tag = repository.rpartition(":")
    if head and "/" not in tag:
        return {"repository": head, "tag": tag, "digest": digest}
    return {"repository": repository, "digest": digest}


def image_values(image: str | None = None) -> list[str]:
    """Options that make the chart use this image, or the one under test."""
    return ["--set", ",".join(f"image.{name}={value}" for name, value in image_parts(image).items())]


def data_values(dataset: str = "fashion-mnist") -> list[str]:
    """Options that give the chart the data of the nodes, where these have it."""
    folder = os.environ.get("E2E_DATA")
    return ["--set", f"data.hostPath.path={folder}/{dataset}"] if folder else []


def args(*words: str) -> list[str]:
    """Options that give these arguments to the task."""
    return ["--set-json", f"args={json.dumps(words)}"]


def own_program(*words: str) -> list[str]:
    """Options that run this in place of a task."""
    return ["--set", "task=", *args("run", "--", *words)]


@contextmanager
def built(name: str, dockerfile: str, folder: Path) -> Iterator[str]:
    """An image of the folder on top of the one under test, which is `base`, in the registry of that one."""
    base = os.environ["E2E_IMAGE"]
    (folder / "Dockerfile").write_text(dockerfile.format(base=base))
    image = f"{base.rpartition('/')[0]}/{name}:{uuid.uuid4().hex[:12]}"
    run("docker", "build", "--quiet", "--tag", image, str(folder))
    run("docker", "push", "--quiet", image)
    yield image
    run("docker", "image", "rm", image)


def replica(pod: Object, count: int = 1, restart: str = "Never") -> Object:
    return {"replicas": count, "restartPolicy": restart, "template": {"spec": pod}}


def pytorchjob(replicas: dict[str, Object], name: str = "demo", /, **spec: object) -> Object:
    """The manifest that one writes by hand."""
    kind = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}}
    return {**kind, "spec": {"pytorchReplicaSpecs": replicas, **spec}}


def bystander(name: str, command: list[str], labels: dict[str, str]) -> Object:
    """The manifest of a pod of the image under test that is no part of a job."""
    image = {"name": "main", "image": os.environ["E2E_IMAGE"], "command": ["tini", "--", *command]}
    spec = {"containers": [image], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _kinds() -> list[str]:
    """What a failure may be seen in, where the cluster has it."""
    known = run("kubectl", "api-resources", "--output=name").stdout.split()
    jobs = ["pytorchjobs.kubeflow.org", "trainjobs.trainer.kubeflow.org", "jobsets.jobset.x-k8s.io", "jobs.batch"]
    kinds = [*jobs, "workloads.kueue.x-k8s.io", "pods", "services", "persistentvolumeclaims"]
    return [kind for kind in kinds if kind in known]


@dataclass(frozen=True)
class Namespace:
    name: str

    def create(self) -> None:
        """Make it, with what every namespace gets, a moment later."""
        run("kubectl", "create", "namespace", self.name)
        run("kubectl", "label", "namespace", self.name, LABEL)
        self.kubectl("wait", "--for=create", "--timeout=300s", "serviceaccount/default", "configmap/kube-root-ca.crt")

    def delete(self) -> None:
        """Without waiting: that all are gone is awaited once, at the end."""
        run("kubectl", "delete", "namespace", self.name, "--wait=false")

    def kubectl(self, *arguments: str, check: bool = True, text: str | None = None) -> str:
        return run("kubectl", "--namespace", self.name, *arguments, check=check, text=text).stdout

    def helm(self, *arguments: str, check: bool = True, program: str = "helm") -> subprocess.CompletedProcess[str]:
        return run(program, "--namespace", self.name, *arguments, check=check)

    def restrict(self) -> None:
        """Admit only pods that keep to the restricted Pod Security Standard."""
        run("kubectl", "label", "namespace", self.name, "pod-security.kubernetes.io/enforce=restricted")

    def install(
        self, *options: str, release: str = "demo", image: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """`helm install` with this image, or the one under test."""
        return self.helm("install", release, str(CHART), *options, *image_values(image), check=check)

    def list(self, kind: str) -> dict[str, Object]:
        items = json.loads(self.kubectl("get", kind, "--output=json"))["items"]
        return {item["metadata"]["name"]: item for item in items}

    def apply(self, manifest: Object) -> None:
        self.kubectl("apply", "--filename=-", text=json.dumps(manifest))

    def uids(self) -> dict[str, str]:
        """Of all pods: one that is made anew keeps its name alone."""
        return {name: pod["metadata"]["uid"] for name, pod in self.list("pod").items()}

    def starts(self, container: str = CONTAINER) -> int:
        """How often containers of the job's pods were started, those of deleted pods included."""
        events = json.loads(self.kubectl("get", "events", "--field-selector=reason=Started", "--output=json"))["items"]
        started = f"spec.containers{{{container}}}"
        return sum(each.get("count") or 1 for each in events if each["involvedObject"].get("fieldPath") == started)

    def log(self, pod: str, container: str = CONTAINER, previous: bool = False) -> str:
        """Of the container's life, or of the `previous` one; empty where there is none."""
        life = ["--previous"] if previous else []
        return self.kubectl("logs", pod, f"--container={container}", *life, check=False)

    def reported(self, pod: str, kind: type[Event], container: str = CONTAINER) -> Sequence[Event]:
        """The events of this kind in the log of the container's life."""
        records = events.in_lines(self.log(pod, container).split("\n"))
        return [record.event for record in records if isinstance(record.event, kind)]

    def conditions(self, job: str, kind: str = "pytorchjob") -> dict[str, Object]:
        """Those that hold, by type."""
        found = json.loads(self.kubectl("get", kind, job, "--output=json"))
        conditions = found.get("status", {}).get("conditions", [])
        return {entry["type"]: entry for entry in conditions if entry["status"] == "True"}

    def wait_for_job(self, job: str, condition: str, kind: str = "pytorchjob") -> None:
        ends = {"Succeeded", "Complete", "Failed"}

        def reached() -> bool:
            true = self.conditions(job, kind)
            wrong = ends - {condition} & true.keys()
            assert not wrong, f"{kind} {job} is {wrong}, not {condition}: {[true[end] for end in wrong]}"
            return condition in true

        wait_for(f"{kind} {job} to be {condition}", reached)

    def wait_for_pods_to_end(self) -> None:
        """The job has, when its master has."""

        def ended() -> bool:
            return {pod["status"]["phase"] for pod in self.list("pod").values()} == {"Succeeded"}

        wait_for("all pods to have ended", ended)

    def uninstall(self, *left: str) -> None:
        """The release `demo`, of which this is left."""
        self.helm("uninstall", "demo", "--wait")
        wait_for("nothing else to be left", lambda: self.everything() == set(left))

    def everything(self) -> set[str]:
        """All objects of the namespace but events, as kind/name."""
        kinds = run("kubectl", "api-resources", "--namespaced", "--verbs=list", "--output=name").stdout.split()
        kinds = [kind for kind in kinds if kind.split(".")[0] != "events"]
        return set(self.kubectl("get", ",".join(kinds), "--output=name", "--ignore-not-found").split())

    def save(self, folder: Path) -> None:
        """What one wants to read after a failure."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, arguments in {
            "events.txt": ["get", "events", "--sort-by=.lastTimestamp", "--output=wide"],
            "pods.txt": ["describe", "pods"],
            "objects.yaml": ["get", ",".join(_kinds()), "--output=yaml"],
        }.items():
            (folder / name).write_text(self.kubectl(*arguments, check=False))
        pods = self.kubectl("get", "pods", "--output=jsonpath={.items[*].metadata.name}", check=False).split()
        for pod in pods:
            for suffix, option in (("", []), (".previous", ["--previous"])):
                log = self.kubectl("logs", pod, "--all-containers", "--prefix", *option, check=False)
                if log:
                    (folder / f"{pod}{suffix}.log").write_text(log)


def verify(namespace: Namespace, *options: str, job: str = "demo") -> dict[tuple[str, int], dict[str, list[int]]]:
    """What scripts/verify_shards.py finds for the job, which has to be proven: for each phase and epoch, each
    pod's rank and its samples expected, consumed, lost and duplicated."""
    found = json.loads(script("verify_shards.py", "--json", "--job", job, "-n", namespace.name, *options).stdout)
    assert found["holds"]
    shards: dict[tuple[str, int], dict[str, list[int]]] = {}
    for tally in found["tallies"]:
        if tally["rank"] != "all":
            numbers = [tally[name] for name in ("rank", "expected", "consumed", "lost", "duplicated")]
            shards.setdefault((tally["phase"], tally["epoch"]), {})[tally["pod"]] = numbers
    return shards
