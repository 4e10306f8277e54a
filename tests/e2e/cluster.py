"""A namespace of a cluster as the tests see it: helm and kubectl in it, and waiting for what has to come true."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/torchtally"
KIND_VALUES = ["--values", str(CHART / "ci/kind-values.yaml")]
CONTAINER = "pytorch"
LABEL = "torchtally-e2e=true"

Object = dict[str, Any]
Result = TypeVar("Result")


def run(*command: str, check: bool = True, text: str | None = None) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=600)
    assert not check or result.returncode == 0, f"{' '.join(command)}: {result.stdout}{result.stderr}"
    return result


def wait_for(what: str, limit: int, ask: Callable[[], Result | None]) -> Result:
    """What `ask` returns once that is true (it may be asked in vain for `limit` seconds)."""
    end = time.monotonic() + limit
    while not (answer := ask()):
        assert time.monotonic() < end, f"waited {limit} s in vain for {what}"
        time.sleep(1)
    return answer


def stays(what: str, seconds: int, ask: Callable[[], bool]) -> None:
    """Nothing but time can tell that a thing does not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert ask(), f"no longer: {what}"
        time.sleep(1)


def image_values() -> list[str]:
    """Options that make the chart use the image under test."""
    repository, _, digest = os.environ["E2E_IMAGE"].partition("@")
    head, _, tag = repository.rpartition(":")
    if head and "/" not in tag:
        return ["--set", f"image.repository={head},image.tag={tag},image.digest={digest}"]
    return ["--set", f"image.repository={repository},image.digest={digest}"]


def data_values() -> list[str]:
    """Options that give the chart the data of the nodes, where these have it."""
    folder = os.environ.get("E2E_DATA")
    return ["--set", f"data.hostPath.path={folder}"] if folder else []


@dataclass(frozen=True)
class Namespace:
    name: str

    def create(self) -> None:
        """Make it, with what every namespace gets, a moment later."""
        run("kubectl", "create", "namespace", self.name)
        run("kubectl", "label", "namespace", self.name, LABEL)
        self.kubectl("wait", "--for=create", "--timeout=60s", "serviceaccount/default", "configmap/kube-root-ca.crt")

    def delete(self) -> None:
        """Without waiting: that all are gone is awaited once, at the end."""
        run("kubectl", "delete", "namespace", self.name, "--wait=false")

    def kubectl(self, *arguments: str, check: bool = True, text: str | None = None) -> str:
        return run("kubectl", "--namespace", self.name, *arguments, check=check, text=text).stdout

    def helm(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run("helm", "--namespace", self.name, *arguments, check=check)

    def install(self, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`helm install demo` with the image under test."""
        return self.helm("install", "demo", str(CHART), *options, *image_values(), check=check)

    def list(self, kind: str) -> dict[str, Object]:
        items = json.loads(self.kubectl("get", kind, "--output=json"))["items"]
        return {item["metadata"]["name"]: item for item in items}

    def apply(self, manifest: Object) -> None:
        self.kubectl("apply", "--filename=-", text=json.dumps(manifest))

    def log(self, pod: str) -> str:
        return self.kubectl("logs", pod, f"--container={CONTAINER}", check=False)

    def wait_for_job(self, job: str, condition: str, limit: int = 300) -> None:
        ends = {"Succeeded", "Failed"}

        def reached() -> bool:
            found = json.loads(self.kubectl("get", "pytorchjob", job, "--output=json"))
            conditions = found.get("status", {}).get("conditions", [])
            true = {entry["type"]: entry for entry in conditions if entry["status"] == "True"}
            wrong = ends - {condition} & true.keys()
            assert not wrong, f"PyTorchJob {job} is {wrong}, not {condition}: {[true[end] for end in wrong]}"
            return condition in true

        wait_for(f"PyTorchJob {job} to be {condition}", limit, reached)

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
            "objects.yaml": ["get", "pytorchjobs,pods,services,persistentvolumeclaims", "--output=yaml"],
        }.items():
            (folder / name).write_text(self.kubectl(*arguments, check=False))
        pods = self.kubectl("get", "pods", "--output=jsonpath={.items[*].metadata.name}", check=False).split()
        for pod in pods:
            for suffix, option in (("", []), (".previous", ["--previous"])):
                log = self.kubectl("logs", pod, "--all-containers", "--prefix", *option, check=False)
                if log:
                    (folder / f"{pod}{suffix}.log").write_text(log)
