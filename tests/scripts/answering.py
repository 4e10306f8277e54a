"""An API server that answers as told, and what it is asked by the real Kubernetes client."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bruteforce
import pytest
import yaml
from kubernetes.config import kube_config

LINES = bruteforce.run(ranks_per_pod=1)
LAST = bruteforce.last(LINES)
JOB = "/apis/kubeflow.org/v1/namespaces/trial/pytorchjobs/demo"
TRAIN_JOB = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/trial/trainjobs/demo"
SELECTOR = "jobset.sigs.k8s.io/jobset-name%3Ddemo%2Cjobset.sigs.k8s.io/replicatedjob-name%3Dnode"
NODES = f"/api/v1/namespaces/trial/pods?labelSelector={SELECTOR}"
UNKNOWN = 404, "404 page not found\n"  # what a cluster says of kinds that it does not have
PODS = ["demo-master-0", "demo-worker-0", "demo-worker-1", "demo-worker-2"]


def pod(name: str) -> str:
    return f"/api/v1/namespaces/trial/pods/{name}"


def refusal(status: int, message: str, name: str = "") -> tuple[int, Any]:
    return status, {"kind": "Status", "apiVersion": "v1", "message": message, "code": status, "details": {"name": name}}


class Server:
    """Answers by path; anything else is forbidden, as the least RBAC has it."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[str] = []
        self.job: dict[str, Any] = {
            "metadata": {"name": "demo", "namespace": "trial"},
            "spec": {
                "pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}},
                "runPolicy": {"cleanPodPolicy": "None"},
            },
            "status": {"conditions": [{"type": "Succeeded", "status": "True"}, {"type": "Running", "status": "False"}]},
        }
        self.answers[JOB] = 200, self.job
        self.answers[TRAIN_JOB] = UNKNOWN
        for index, name in enumerate(PODS):
            self.phase(name, "Succeeded")
            mine = [line for line in LINES if line["pod"] == name]
            assert mine[0]["rank"] == index
            self.log(name, bruteforce.text(mine))

    def phase(self, name: str, phase: str, **status: Any) -> None:
        self.answers[pod(name)] = 200, {"kind": "Pod", "status": {"phase": phase, **status}}

    def log(self, name: str, text: str) -> None:
        self.answers[pod(name) + "/log?container=pytorch"] = 200, text

    def proves(self) -> None:
        """Rank 0's log has the run's last line."""
        self.log(PODS[0], bruteforce.text([*(line for line in LINES if line["pod"] == PODS[0]), LAST]))

    def state(self, *kinds: str, message: str = "") -> None:
        self.job["status"]["conditions"] = [{"type": kind, "status": "True", "message": message} for kind in kinds]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        status, body = self.answers.get(handler.path, refusal(403, f'cannot get "{handler.path}"'))
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


@contextmanager
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    answering = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answering.answer(self)

        do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        kubeconfig(tmp_path, monkeypatch, listening.server_port)
        yield answering
        listening.shutdown()
        thread.join()


def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    context = {"cluster": "here", "user": "me"}
    values = {
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [
            {"name": "first", "context": {**context, "namespace": "trial"}},
            {"name": "second", "context": context},
        ],
        "current-context": "first",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(values))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
