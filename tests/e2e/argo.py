"""The chart as an Application of Argo CD, from a repository of charts in the namespace of a test."""

import json
from pathlib import Path

from cluster import CHART, Namespace, Object, bystander, run, wait_for

ARGO = Namespace("argocd")
_CLUSTER = "https://kubernetes.default.svc"


class Application:
    def __init__(self, namespace: Namespace, folder: Path) -> None:
        """`folder`: for the packaged chart."""
        self._namespace = namespace
        self._name = namespace.name
        run("helm", "package", str(CHART), f"--destination={folder}")
        self._version = next(folder.glob("torchtally-*.tgz")).stem.partition("-")[2]
        self._repository = f"http://charts.{namespace.name}.svc:8000"
        run("helm", "repo", "index", str(folder), f"--url={self._repository}")
        _serve(namespace, folder)
        project = {
            "sourceRepos": [self._repository],
            "destinations": [{"server": _CLUSTER, "namespace": namespace.name}],
        }
        ARGO.apply(_of_argo("AppProject", self._name, project))

    def sync(self, values: Object) -> Object:
        """Apply the chart with these values, and prune what it no longer has. Returns how that ended."""
        source = {
            "repoURL": self._repository,
            "chart": "torchtally",
            "targetRevision": self._version,
            "helm": {"releaseName": "demo", "valuesObject": values},
        }
        destination = {"server": _CLUSTER, "namespace": self._namespace.name}
        spec = {"project": self._name, "source": source, "destination": destination}
        ARGO.apply(_of_argo("Application", self._name, spec))
        before = self._status().get("operationState", {}).get("startedAt")
        operation = {"operation": {"sync": {"revision": self._version, "prune": True}}}
        ARGO.kubectl("patch", "application", self._name, "--type=merge", f"--patch={json.dumps(operation)}")

        def ended() -> Object | None:
            state = self._status().get("operationState", {})
            return state if state.get("finishedAt") and state["startedAt"] != before else None

        return wait_for("the sync to end", ended)

    def wait_for(self, sync: str, health: str) -> None:
        def reached() -> bool:
            status = self._status()
            return (status["sync"]["status"], status["health"]["status"]) == (sync, health)

        wait_for(f"the application to be {sync} and {health}", reached)

    def delete(self) -> None:
        """Without what it has made, which goes with the namespace."""
        ARGO.kubectl("delete", "application,appproject", self._name, "--ignore-not-found")

    def _status(self) -> Object:
        found = json.loads(ARGO.kubectl("get", "application", self._name, "--output=json"))
        return found.get("status", {})


def _of_argo(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _serve(namespace: Namespace, folder: Path) -> None:
    namespace.kubectl("create", "configmap", "charts", f"--from-file={folder}")
    pod = bystander("charts", ["python", "-m", "http.server", "8000", "--directory", "/charts"], {"name": "charts"})
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "charts", "mountPath": "/charts"}]
    pod["spec"]["volumes"] = [{"name": "charts", "configMap": {"name": "charts"}}]
    namespace.apply(pod)
    namespace.kubectl("expose", "pod", "charts", "--port=8000")
    namespace.kubectl("wait", "pod/charts", "--for=condition=Ready", "--timeout=300s")
