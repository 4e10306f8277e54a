"""Which changes to the pods of a job the chart's admission policies deny, and which somebody has to make.

The jobs have no pods: the operator leaves alone what another controller manages, and what is on its way out.
"""

import json
from collections.abc import Iterator

import pytest
from cluster import Namespace, Object, wait_for
from policy import job, refusal

OPERATOR = "kubeflow.org/training-operator"
HELD = {"finalizers": ["torchtally/held"]}


def held(job: Object) -> Object:
    return job | {"metadata": job["metadata"] | HELD}


def unmarked(job: Object) -> Object:
    return job | {"metadata": {"name": "demo"}}


def elastic(job: Object) -> Object:
    return job | {"spec": job["spec"] | {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}}


def status(**conditions: bool) -> Object:
    listed = [{"type": name, "status": str(holds)} for name, holds in conditions.items()]
    return {"startTime": "2026-01-01T00:00:00Z", "conditions": listed}


RUNS_STILL = status(Suspended=False, Running=True)
STOPPED = status(Running=False, Suspended=True)
SUCCEEDED = status(Running=False, Succeeded=True)
FAILED = status(Running=False, Succeeded=False, Failed=True)

# The job, and its status.
STATES: dict[str, tuple[Object, Object]] = {
    "running": (job(), RUNS_STILL),
    "running here": (held(job(managedBy=OPERATOR)), RUNS_STILL),
    "running alone": (job(kinds=("Master",)), {}),
    "running without master": (job(kinds=("Worker",)), {}),
    "elastic": (elastic(job(kinds=("Worker",))), RUNS_STILL),
    "suspended": (held(job(suspend=True, managedBy=OPERATOR)), {}),
    "suspended again": (held(job(suspend=True, managedBy=OPERATOR)), STOPPED),
    "suspended with pods": (held(job(suspend=True, managedBy=OPERATOR)), RUNS_STILL),
    "suspended with pods elsewhere": (job(suspend=True), RUNS_STILL),
    "succeeded": (job(), SUCCEEDED),
    "failed": (job(), FAILED),
    "suspended after its end": (held(job(suspend=True, managedBy=OPERATOR)), SUCCEEDED),
    "of another origin": (unmarked(job()), RUNS_STILL),
}

Operation = tuple[str, str, object]
POLICY, SPECS = "/spec/runPolicy", "/spec/pytorchReplicaSpecs"
IMAGE: Operation = ("replace", f"{SPECS}/Worker/template/spec/containers/0/image", "other")
SELECTOR: Operation = ("add", f"{SPECS}/Worker/template/spec/nodeSelector", {"pool": "gpu"})
LABELS: Operation = ("add", f"{SPECS}/Worker/template/metadata", {"labels": {"team": "vision"}})
RESTART: Operation = ("replace", f"{SPECS}/Worker/restartPolicy", "Never")
SCALE: Operation = ("replace", f"{SPECS}/Worker/replicas", 2)
ALONE: Operation = ("remove", f"{SPECS}/Worker", None)
WORKER: Operation = ("add", f"{SPECS}/Worker", job()["spec"]["pytorchReplicaSpecs"]["Worker"])
MASTER: Operation = ("add", f"{SPECS}/Master", job()["spec"]["pytorchReplicaSpecs"]["Worker"])
PROCESSES: Operation = ("replace", "/spec/nprocPerNode", "2")
MOST: Operation = ("replace", "/spec/elasticPolicy/maxReplicas", 3)
SUSPEND: Operation = ("add", f"{POLICY}/suspend", True)
RESUME: Operation = ("replace", f"{POLICY}/suspend", False)
BACKOFF: Operation = ("add", f"{POLICY}/backoffLimit", 9)
TTL: Operation = ("add", f"{POLICY}/ttlSecondsAfterFinished", 9)
LABEL: Operation = ("add", "/metadata/labels", {"team": "vision"})
UNMARK: Operation = ("remove", "/metadata/annotations", None)

REPLACE = "and its pods cannot change: replace it with a job of another name"
RUNS = f"PyTorchJob demo is running, {REPLACE}, or suspend it first"
ENDED = f"PyTorchJob demo has finished, {REPLACE}"
LEFT = "PyTorchJob demo is suspended but still has pods; resume it when they are deleted"
ALLOWED = ""

CHANGES: list[tuple[str, list[Operation], str]] = [
    ("running", [IMAGE], RUNS),
    ("running", [IMAGE, UNMARK], RUNS),
    ("running", [SELECTOR], RUNS),
    ("running", [LABELS], RUNS),
    ("running", [RESTART], RUNS),
    ("running", [SCALE], RUNS),
    ("running", [ALONE], RUNS),
    ("running", [PROCESSES], RUNS),
    ("running", [BACKOFF, TTL, LABEL], ALLOWED),
    ("running", [SUSPEND], ALLOWED),
    ("running", [SUSPEND, SELECTOR], ALLOWED),  # as Kueue does when it takes the quota back
    ("running here", [BACKOFF], ALLOWED),
    ("running alone", [WORKER], RUNS),
    ("running without master", [MASTER, ALONE], RUNS),
    ("elastic", [SCALE], ALLOWED),
    ("elastic", [SCALE, IMAGE], RUNS),
    ("elastic", [MOST], RUNS),
    ("suspended", [IMAGE], ALLOWED),
    ("suspended", [SELECTOR, RESUME], ALLOWED),  # as Kueue does when there is quota
    ("suspended again", [SELECTOR, RESUME], ALLOWED),
    ("suspended with pods", [RESUME], LEFT),
    ("suspended with pods", [IMAGE, RESUME], LEFT),
    ("suspended with pods", [IMAGE], ALLOWED),
    ("suspended with pods elsewhere", [RESUME], ALLOWED),
    ("succeeded", [IMAGE], ENDED),
    ("succeeded", [IMAGE, SUSPEND], ENDED),
    ("succeeded", [TTL, LABEL], ALLOWED),
    ("failed", [IMAGE], ENDED),
    ("suspended after its end", [IMAGE], ENDED),
    ("suspended after its end", [RESUME], ALLOWED),
    ("of another origin", [IMAGE], ALLOWED),
]


def release(namespace: Namespace) -> None:
    change = '--patch={"metadata":{"finalizers":null}}'
    namespace.kubectl("patch", "pytorchjob", "demo", "--type=merge", change, check=False)


@pytest.fixture
def released(namespace: Namespace) -> Iterator[None]:
    """Nothing holds the namespace, whatever fails and however long a policy that is deleted still denies."""
    yield

    def is_released() -> bool:
        release(namespace)
        return not any("finalizers" in each["metadata"] for each in namespace.list("pytorchjob").values())

    wait_for("the job to be released", is_released)


def make(namespace: Namespace, manifest: Object, status: Object) -> None:
    """In place of the job before it."""
    name = ("pytorchjob", "demo")
    release(namespace)
    namespace.kubectl("delete", *name, "--ignore-not-found", "--timeout=60s")
    namespace.kubectl("create", "--filename=-", text=json.dumps(manifest))
    if "finalizers" in manifest["metadata"]:
        namespace.kubectl("delete", *name, "--wait=false")
    whole = json.dumps({"status": {"conditions": [], "startTime": None} | status})
    namespace.kubectl("patch", *name, "--subresource=status", "--type=merge", f"--patch={whole}")


def test_a_change_of_the_pods_is_denied_where_they_would_differ(
    released: None, policies: None, namespace: Namespace
) -> None:
    wrong = []
    for state, (manifest, status) in STATES.items():
        make(namespace, manifest, status)
        for operations, expected in ((operations, denied) for of, operations, denied in CHANGES if of == state):
            patch = json.dumps([{"op": what, "path": path, "value": value} for what, path, value in operations])
            command = ("patch", "pytorchjob", "demo", "--type=json", "--dry-run=server", f"--patch={patch}")
            refused = refusal(namespace, *command)
            if refused.partition("denied request: ")[2].strip() != expected or bool(refused) != bool(expected):
                wrong.append((state, patch, refused))
    assert wrong == []


NOT_ELASTIC = (
    "PyTorchJob demo is not elastic, and the number of its pods cannot change while it runs: replace it with a job of "
    "another name, or suspend it first"
)


def test_the_scale_of_a_job_that_is_not_elastic_is_denied_while_it_runs(
    released: None, policies: None, namespace: Namespace
) -> None:
    namespace.kubectl("create", "--filename=-", text=json.dumps(job("another")))

    def scaled(replicas: int) -> str:
        said = refusal(namespace, "scale", "pytorchjob", "demo", f"--replicas={replicas}", "--dry-run=server")
        return said.partition("denied request: ")[2].strip() if "denied request: " in said else said

    make(namespace, *STATES["running"])
    # The API server learns of a parameter as it learns of any change.
    wait_for("the job is known to the policy", lambda: scaled(2))
    assert [scaled(2), scaled(1)] == [NOT_ELASTIC, ALLOWED]
    for state in ("elastic", "suspended", "of another origin"):
        make(namespace, *STATES[state])
        wait_for(f"the policy allows it for the job {state}", lambda: scaled(2) == ALLOWED)
