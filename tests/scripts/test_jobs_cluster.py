"""torchtally_jobs against an API server that answers as told, by the real Kubernetes client."""

import base64
import hashlib
import io
import json
import socket
import tarfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import bruteforce
import pytest
import seen
import stated
import told
from answering import JOB, NODES, TRAIN_JOB, UNKNOWN, Server, kubeconfig, pod, refusal
from answering import PODS as NAMES

from torchtally.jobs import follow, watching

PODS = "/api/v1/namespaces/trial/pods"
OF_JOB = f"{PODS}?labelSelector=training.kubeflow.org/job-name%3Ddemo"
EVENTS = "/api/v1/namespaces/trial/events?fieldSelector=type%3DWarning"
JOBS = JOB.removesuffix("/demo")
TRAIN_JOBS = TRAIN_JOB.removesuffix("/demo")
CREATED = "2026-01-02T03:04:00Z"
Ask = Callable[..., tuple[int, str]]


def container(restarts: int = 0, **states: Any) -> dict[str, Any]:
    common = {"name": "pytorch", "image": "", "imageID": "", "ready": True}
    return {**common, "restartCount": restarts, **(states or {"state": {"running": {"startedAt": CREATED}}})}


def object_of(name: str, phase: str = "Running", **status: Any) -> dict[str, Any]:
    labels = {"training.kubeflow.org/job-name": "demo"}
    metadata = {"name": name, "uid": f"uid of {name}", "creationTimestamp": CREATED, "labels": labels}
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": [container()], **status}}


@pytest.fixture
def cluster(server: Server) -> Server:
    """With what a user may list as well."""
    server.proves()
    server.answers[JOBS] = 200, {"items": [server.job]}
    server.answers[TRAIN_JOBS] = UNKNOWN
    pods(server, *map(object_of, NAMES))
    server.answers[EVENTS] = 200, {"items": []}
    for name in NAMES:
        status, text = server.answers[f"{pod(name)}/log?container=pytorch"]
        stamped = "".join(f"2026-01-02T03:04:05.{at:09}Z {line}\n" for at, line in enumerate(text.splitlines()))
        server.answers[f"{pod(name)}/log?container=pytorch&follow=true&timestamps=true"] = status, stamped
    return server


def gone(server: Server) -> None:
    """Delete the job."""
    for path, kind in ((JOB, "pytorchjobs"), (TRAIN_JOB, "trainjobs")):
        server.answers[path] = refusal(404, f'{kind} "demo" not found', "demo")


def pods(server: Server, *objects: dict[str, Any]) -> None:
    for path in (PODS, OF_JOB):
        server.answers[path] = 200, {"items": list(objects)}


def test_a_job_that_is_proved(cluster: Server, ask: Ask) -> None:
    for command in ("status", "watch"):
        status, said = ask(command, "demo")
        assert status == 0 and "✓ the proof holds: run" in said, said
        assert "imports" not in said  # its pods run, and have no entry point that reports
    status, said = ask("list")
    assert status == 0 and said.endswith("✓ proved")
    assert [word for word in said.split() if word in ("demo", "succeeded")] == ["demo", "succeeded"]
    status, said = ask("list", "--json")
    (listed,) = json.loads(said)["jobs"]
    assert (listed["job"], listed["kind"], listed["standing"]) == ("demo", "PyTorchJob", "proved")


def test_only_the_first_pod_is_read_for_a_list(cluster: Server, ask: Ask) -> None:
    ask("list")
    assert [path for path in cluster.asked if "/log" in path] == [f"{pod('demo-master-0')}/log?container=pytorch"]


@pytest.mark.parametrize(("shards", "word"), [(seen.RIGHT, "observed"), (seen.ALL, "✗ faulty")])
def test_all_pods_of_an_observed_job_are_read_for_a_list(
    cluster: Server, ask: Ask, shards: tuple[list[int], list[int]], word: str
) -> None:
    for name in ("demo-worker-1", "demo-worker-2"):
        cluster.log(name, "")
    for rank, name in enumerate(seen.PODS):
        cluster.log(name, f"{seen.line(rank, shards[rank])}\n")
    assert ask("list")[1].endswith(word)
    assert len([path for path in cluster.asked if "/log" in path]) == 4


@pytest.mark.parametrize(
    ("states", "suspend", "status", "state"),
    [
        ([], False, 4, "starting"),
        (["Suspended"], True, 4, "suspended"),
        (["Created", "Running"], False, 6, "running"),
        (["Created", "Failed"], False, 5, "failed"),
    ],
)
def test_the_exit_status_tells_a_job_that_is_not_proved(
    cluster: Server,
    ask: Ask,
    states: list[str],
    suspend: bool,
    status: int,
    state: str,
) -> None:
    cluster.state(*states)
    cluster.job["spec"]["runPolicy"]["suspend"] = suspend
    for name in NAMES:
        cluster.log(name, "")
    found, said = ask("status", "demo", "--json")
    assert (found, json.loads(said)["state"]) == (status, state)
    if status in (4, 6):
        sentence = f"torchtally jobs: PyTorchJob demo is {state}: its results are not complete"
        assert ask("fetch", "demo", "nowhere") == (status, sentence)


def test_where_the_time_went_until_the_first_step(cluster: Server, ask: Ask) -> None:
    cluster.state("Running")
    running = container(state={"running": {"startedAt": "2026-01-02T03:03:58Z"}})
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-02T03:03:55Z"}
    found = object_of("demo-master-0", containerStatuses=[running], conditions=[scheduled])
    found["metadata"]["creationTimestamp"] = "2026-01-02T03:03:50Z"
    pods(cluster, found)
    for name in ("demo-worker-0", "demo-worker-1", "demo-worker-2"):
        cluster.log(name, "")
    cluster.log("demo-master-0", "".join(f"{line.partition(' ')[2]}\n" for line in told.KILLED if told.MASTER in line))
    phases = {"scheduling": 5, "container": 3, "import": 2, "rendezvous": 1, "data": 1, "first step": 3}
    start = json.loads(ask("status", "demo", "--json")[1])["start"]
    assert start == {
        "created": told.BEGAN - 10,
        "seconds": 15,
        "phases": phases,
        "pods": {"demo-master-0": phases},
    }
    said = ", ".join(f"{name} {seconds}.0 s" for name, seconds in phases.items())
    assert f"first step 15.0 s after the first pod was created: {said}" in ask("status", "demo")[1]


def test_what_a_pod_waits_for_and_warnings(cluster: Server, ask: Ask) -> None:
    cluster.state("Created")
    waiting = container(state={"waiting": {"reason": "ImagePullBackOff"}})
    pods(cluster, object_of("demo-worker-0", "Pending", containerStatuses=[waiting]))
    event = {"metadata": {}, "type": "Warning", "lastTimestamp": CREATED}
    own = {**event, "involvedObject": {"name": "demo-worker-0"}, "reason": "Failed", "message": "no such image"}
    other = {**event, "involvedObject": {"name": "another"}, "reason": "Failed", "message": "not ours"}
    cluster.answers[EVENTS] = 200, {"items": [own, other]}
    _, said = ask("status", "demo")
    assert "waits: ImagePullBackOff" in said
    assert "warning: demo-worker-0: Failed: no such image" in said and "not ours" not in said


def test_what_has_killed_a_pod_is_the_clusters_word(cluster: Server, ask: Ask) -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": CREATED, "finishedAt": "2026-01-02T03:04:09Z"}
    running = {"running": {"startedAt": "2026-01-02T03:04:19Z"}}
    again = container(1, state=running, lastState={"terminated": ended})
    pods(cluster, object_of("demo-worker-0", containerStatuses=[again]))
    earlier = "\n".join(line.removeprefix(f"[{told.WORKER}] ") for line in told.KILLED if told.WORKER in line)
    cluster.answers[f"{pod('demo-worker-0')}/log?container=pytorch&previous=true"] = 200, earlier
    now = [line.removeprefix(f"[{told.WORKER}] ") for line in told.RESUMED if told.WORKER in line]
    cluster.log("demo-worker-0", "\n".join(now))
    cluster.state("Running")
    _, said = ask("status", "demo", "--json")
    (restart,) = json.loads(said)["restarts"]
    assert (restart["pod"], restart["code"], restart["cause"]) == ("demo-worker-0", 137, "OOMKilled")


def test_a_right_that_lacks(cluster: Server, ask: Ask) -> None:
    cluster.answers.pop(OF_JOB)
    status, said = ask("status", "demo")
    assert status == 0 and "a role must allow list on pods" in said  # what can be shown is
    for path, command, right in (
        (PODS, ["list"], "list on pods"),
        (JOBS, ["list"], "list on pytorchjobs.kubeflow.org"),
        (f"{pod('demo-worker-1')}/log?container=pytorch", ["status", "demo"], "get on pods/log"),
        (JOB, ["watch", "demo"], "get on pytorchjobs.kubeflow.org"),
    ):
        answer = cluster.answers.pop(path)
        status, said = ask(*command)
        assert status == 2 and f"a role must allow {right}" in said, said
        cluster.answers[path] = answer


def test_no_such_job(cluster: Server, ask: Ask) -> None:
    gone(cluster)
    for command in (["status", "demo"], ["watch", "demo"], ["fetch", "demo", "new"]):
        status, said = ask(*command)
        assert status == 2 and "no PyTorchJob or TrainJob demo in namespace trial" in said
    cluster.answers[JOBS] = 200, {"items": []}
    assert ask("list") == (0, "no PyTorchJob or TrainJob in namespace trial")
    cluster.answers[JOBS] = UNKNOWN
    status, said = ask("list")
    assert status == 2 and "this cluster does not know PyTorchJobs or TrainJobs" in said


def test_a_cluster_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    with socket.socket() as taken:  # nobody listens
        taken.bind(("127.0.0.1", 0))
        kubeconfig(tmp_path, monkeypatch, taken.getsockname()[1])
        for command in (["list"], ["status", "demo"], ["watch", "demo"]):
            status, said = ask(*command)
            assert status == 7 and "cannot reach the cluster" in said, said


@pytest.fixture
def watch(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Watches the job without a pause, and does this at every look; line by line, as there is no terminal."""

    def watched(act: Callable[[], object], *options: str) -> tuple[int, str]:
        monkeypatch.setattr(watching, "_LOOK", 0.0)
        monkeypatch.setattr(watching.gathering, "tell", lambda *_: act())
        return ask("watch", "demo", *options)

    return watched


def test_a_job_is_watched_to_its_end(cluster: Server, watch: Ask) -> None:
    cluster.state("Created", "Running")
    looks = iter(("Running", "Succeeded"))
    status, said = watch(lambda: cluster.state(next(looks, "Succeeded")))
    assert status == 0
    assert "demo is running" in said and "✓ the proof holds" in said


def test_a_job_that_is_deleted_while_it_is_watched(cluster: Server, watch: Ask) -> None:
    cluster.state("Running")
    status, said = watch(lambda: gone(cluster))
    assert status == 2 and "PyTorchJob demo in namespace trial was deleted while it was running" in said


def test_a_pod_that_is_restarted_is_followed_on(cluster: Server, watch: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server answers with the log of the container that runs; each line is counted once."""
    stamps = iter(range(100))

    def text(first: float) -> str:
        lines = [line.partition(" ")[2] for line in told.start(first) if told.WORKER in line]
        return "".join(f"2026-01-02T03:04:05.{next(stamps):09}Z {line}\n" for line in lines)

    texts = [text(0), text(20)]
    restarts = iter(range(2))

    def restart() -> None:
        number = next(restarts, None)
        if number is None:
            cluster.state("Succeeded")
            return
        ended = {"terminated": {"exitCode": 1, "startedAt": CREATED, "finishedAt": CREATED}}
        pods(cluster, object_of(told.WORKER, containerStatuses=[container(number, state=ended)]))
        path = f"{pod(told.WORKER)}/log?container=pytorch&follow=true&timestamps=true"
        cluster.answers[path] = 200, texts[number]

    def lines(self: follow.Follower, seconds: float) -> list[follow.Line]:
        if came := [*settle(self, seconds)]:
            restart()
        return came

    cluster.state("Running")
    restart()
    for name in NAMES:
        cluster.log(name, "")
    settle = follow.Follower.lines
    monkeypatch.setattr(follow.Follower, "lines", lines)
    _, said = watch(lambda: None, "--json")
    shown = [each for line in said.replace("} {", "}\n{").splitlines() for each in json.loads(line)["pods"]]
    (last,) = [pod["restarts"] for pod in shown if pod["name"] == told.WORKER][-1:]
    assert last == 1


# The results, through a pod of its own.


def packed(files: dict[str, bytes]) -> bytes:
    with tarfile.open(fileobj=(text := io.BytesIO()), mode="w") as archive:
        for name, contents in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(contents)
            archive.addfile(entry, io.BytesIO(contents))
    return text.getvalue()


class Claim:
    """Has the server make a pod, and run tar in it."""

    def __init__(self, server: Server, archive: bytes, code: int = 0) -> None:
        self.made: list[dict[str, Any]] = []
        self.commands: list[str] = []
        self.deleted: list[str] = []
        self._server, self._archive, self._code = server, archive, code
        self._answer = server.answer
        server.answer = self.answer  # type: ignore[method-assign]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path
        if handler.command == "POST":
            made = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
            self.made.append(made)
            name = made["metadata"]["name"]
            self._server.answers[f"{PODS}/{name}"] = 200, {**made, "status": {"phase": "Running"}}
            self._server.answers[PODS] = 201, made
        if handler.command == "DELETE":
            self.deleted.append(path.rpartition("/")[2].partition("?")[0])
            self._server.answers[path] = 200, {}
        if "/exec?" in path:
            self.commands.append(path)
            self._stream(handler)
        else:
            self._answer(handler)

    def _stream(self, handler: BaseHTTPRequestHandler) -> None:
        key = handler.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        handler.send_response(101)
        handler.send_header("Upgrade", "websocket")
        handler.send_header("Connection", "Upgrade")
        handler.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        handler.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        handler.end_headers()
        for at in range(0, len(self._archive), 1000):
            handler.wfile.write(frame(2, b"\x01" + self._archive[at : at + 1000]))
        if self._code:
            handler.wfile.write(frame(2, b"\x02tar: /output: no such folder\n"))
            ended = {"status": "Failure", "details": {"causes": [{"message": str(self._code)}]}}
        else:
            ended = {"status": "Success"}
        handler.wfile.write(frame(2, b"\x03" + json.dumps(ended).encode()))
        handler.wfile.write(frame(8, b"\x03\xe8"))
        handler.close_connection = True


def frame(kind: int, data: bytes) -> bytes:
    """Of WebSocket, from a server."""
    size = bytes([len(data)]) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big")
    return bytes([0x80 | kind]) + size + data


@pytest.fixture
def claimed(cluster: Server) -> Server:
    mount = {"name": "model", "mountPath": "/output", "subPath": "demo"}
    training = {"name": "pytorch", "image": "torchtally:cpu", "volumeMounts": [mount]}
    spec = {"containers": [training], "nodeSelector": {"zone": "a"}, "priorityClassName": "high"}
    spec["volumes"] = [{"name": "model", "persistentVolumeClaim": {"claimName": "demo-model"}}, {"name": "shm"}]
    cluster.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"] = {"spec": spec}
    return cluster


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def fetch(ask: Ask, out: Path) -> Ask:
    return lambda *options: ask("fetch", "demo", out, *options)


VOLUMES = [{"name": "model", "persistentVolumeClaim": {"claimName": "demo-model"}}]
MODEL = b"the weights" * 1000
CHECKPOINT = {"name": "checkpoints/a.checkpoint", "digest": {"sha256": hashlib.sha256(b"saved").hexdigest()}}
PROOF = stated.statement(bruteforce.run(), model=hashlib.sha256(MODEL).hexdigest(), checkpoint=CHECKPOINT["name"])
PROOF["subject"].append(CHECKPOINT)
FILES = {"model.pt": MODEL, "proof.json": json.dumps(PROOF).encode()}


def test_the_model_and_its_proof_are_copied(claimed: Server, fetch: Ask, out: Path) -> None:
    claim = Claim(claimed, packed(FILES))
    assert fetch() == (0, f"copied to {out}: model.pt, proof.json")
    assert (out / "model.pt").read_bytes() == MODEL
    (made,) = claim.made
    assert made["spec"]["volumes"] == VOLUMES
    assert made["spec"]["nodeSelector"] == {"zone": "a"} and "priorityClassName" not in made["spec"]
    (container,) = made["spec"]["containers"]
    assert container["image"] == "torchtally:cpu"
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}  # a ResourceQuota admits none without
    assert container["volumeMounts"] == [{"name": "model", "mountPath": "/output", "subPath": "demo", "readOnly": True}]
    assert "command=--exclude%3D./checkpoints" in claim.commands[0]
    assert claim.deleted == [made["metadata"]["name"]]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (FILES | {"model.pt": MODEL + b"!"}, "model.pt is sha256:"),
        ({"proof.json": FILES["proof.json"]}, "model.pt is missing, and "),
        (FILES | {"checkpoints/a.checkpoint": b"cut"}, "checkpoints/a.checkpoint is sha256:"),
        (FILES | {"proof.json": b"{"}, "proof.json is no proof: it is cut off or damaged"),
    ],
)
def test_files_that_are_not_those_of_the_proof(
    claimed: Server, fetch: Ask, out: Path, files: dict[str, bytes], reason: str
) -> None:
    claim = Claim(claimed, packed(files))
    status, said = fetch()
    assert status == 1 and f"{out}/{reason}" in said
    assert claim.deleted


def test_a_claim_that_cannot_be_read(claimed: Server, fetch: Ask) -> None:
    claim = Claim(claimed, b"", code=2)
    status, said = fetch("--checkpoints")
    assert status == 2 and "cannot be read: tar: /output: no such folder" in said
    assert "exclude" not in claim.commands[0] and claim.deleted


CLAIM = "/api/v1/namespaces/trial/persistentvolumeclaims/demo-model"


def claim_alone(server: Server) -> dict[str, Any]:
    """Delete the job; returns the annotations of the chart's claim, which remains."""
    gone(server)
    spec = server.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    spec["containers"][0]["securityContext"] = {"runAsUser": 7, "privileged": True, "capabilities": {"add": ["ALL"]}}
    annotations = {"torchtally/reader": json.dumps(spec)}
    server.answers[CLAIM] = 200, {"metadata": {"name": "demo-model", "annotations": annotations}}
    return annotations


@pytest.mark.parametrize("kind", ["no job", "a TrainJob without pods"])
def test_the_results_of_a_job_that_is_gone_are_read_by_its_claim(
    claimed: Server, fetch: Ask, out: Path, kind: str
) -> None:
    claim_alone(claimed)
    if kind != "no job":
        status = {"conditions": [{"type": "Complete", "status": "True"}]}
        claimed.answers[TRAIN_JOB] = 200, {"metadata": claimed.job["metadata"], "spec": {}, "status": status}
        claimed.answers[NODES] = 200, {"items": []}
    claim = Claim(claimed, packed(FILES))
    status, said = fetch()
    assert status == 0 and f"copied to {out}: model.pt, proof.json" in said
    if kind == "no job":
        assert "no PyTorchJob or TrainJob demo in namespace trial" in said and "its PVC is read" in said
    (made,) = claim.made
    assert made["spec"]["volumes"] == VOLUMES
    (container,) = made["spec"]["containers"]
    assert container["volumeMounts"][0]["subPath"] == "demo"
    rights = {"runAsUser": 7, "privileged": False, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == rights  # whoever may edit a claim gets no more by it
    assert claim.deleted == [made["metadata"]["name"]]


NOT_OURS = "its PVC demo-model has no annotation torchtally/reader of the chart's"


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        (None, "and no PVC demo-model, where the chart keeps a job's results"),
        ({}, NOT_OURS),
        ({"torchtally/reader": "{"}, NOT_OURS),
        ({"torchtally/reader": '{"containers":[]}'}, NOT_OURS),
    ],
    ids=["no claim", "no annotation", "no JSON", "no container"],
)
def test_what_to_do_where_a_job_and_its_claim_do_not_tell(
    claimed: Server, fetch: Ask, out: Path, annotations: dict[str, str] | None, said: str
) -> None:
    gone(claimed)
    claimed.answers[CLAIM] = 200, {"metadata": {"name": "demo-model", "annotations": annotations}}
    if annotations is None:
        claimed.answers[CLAIM] = refusal(404, "not found", "demo-model")
    status, text = fetch()
    assert status == 2 and "no PyTorchJob or TrainJob demo in namespace trial" in text and said in text
    assert not out.exists()


def test_a_job_without_a_claim_and_one_whose_claim_may_not_be_read(claimed: Server, fetch: Ask, out: Path) -> None:
    del claimed.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["volumes"]
    status, said = fetch()
    assert status == 2 and "PyTorchJob demo has no PVC at /output" in said
    gone(claimed)
    claimed.answers[CLAIM] = refusal(403, "no")
    status, said = fetch()
    assert status == 2 and "a role must allow get on persistentvolumeclaims" in said
    assert not out.exists()


def test_the_right_to_make_a_pod(claimed: Server, fetch: Ask) -> None:
    claimed.answers[PODS] = refusal(403, "no")
    status, said = fetch()
    assert status == 2 and "a role must allow create on pods" in said
