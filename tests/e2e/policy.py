"""The chart's admission policies, which apply to a whole cluster, in a namespace of a test alone."""

import json

import yaml
from cluster import CHART, CONTAINER, Namespace, Object, pytorchjob, replica, run, wait_for

MARK = {"torchtally/pods": "hash"}
KUEUE = "kueue.x-k8s.io/multikueue"


def job(name: str = "demo", kinds: tuple[str, ...] = ("Master", "Worker"), **policy: object) -> Object:
    """One of the chart that the operator leaves alone, unless it is told to manage it."""
    each = replica({"containers": [{"name": CONTAINER, "image": "none"}]}, restart="OnFailure")
    job = pytorchjob(dict.fromkeys(kinds, each), nprocPerNode="1", runPolicy={"managedBy": KUEUE} | policy)
    return job | {"metadata": {"name": name, "annotations": MARK}}


def runtime(name: str = "demo") -> Object:
    node = {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [{"name": "node"}]}}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": name, "annotations": MARK},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [node]}}},
    }


PROBES = {
    "pytorchjobs.kubeflow.org": (job("probe"), {"nprocPerNode": "2"}),
    "trainingruntimes.trainer.kubeflow.org": (runtime("probe"), {"mlPolicy": {"numNodes": 2}}),
}


def apply(namespace: Namespace) -> list[str]:
    """Returns what was made, once it denies."""
    policies = []
    for each in yaml.safe_load_all((CHART / "policy.yaml").read_text()):
        each["metadata"]["name"] += f".{namespace.name}"
        if each["kind"].endswith("Binding"):
            each["spec"]["policyName"] += f".{namespace.name}"
            only = {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
            each["spec"]["matchResources"] = {"namespaceSelector": only}
        policies.append(each)
    run("kubectl", "apply", "--server-side", "--filename=-", text=yaml.safe_dump_all(policies))
    for kind, (probe, change) in PROBES.items():
        if run("kubectl", "get", "crd", kind, check=False).returncode == 0:
            namespace.apply(probe)
            patch = json.dumps({"spec": change})
            command = ("patch", kind, "probe", "--type=merge", "--dry-run=server", f"--patch={patch}")
            wait_for(f"the policy of {kind}", lambda command=command: "denied" in refusal(namespace, *command))
            namespace.kubectl("delete", kind, "probe")
    return [f"{each['kind'].lower()}/{each['metadata']['name']}" for each in policies]


def refusal(namespace: Namespace, *command: str) -> str:
    """What the API server says; empty if it does it."""
    result = run("kubectl", "--namespace", namespace.name, *command, check=False)
    return result.stderr if result.returncode else ""
