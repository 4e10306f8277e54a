"""`torchtally spark` on a standalone cluster of Spark in pods: a master, two workers on two nodes, a driver."""

import json
import os
from pathlib import Path

import nodes
import yaml
from cluster import Namespace, Object, script, wait_for

WORKERS = ["spark-worker-0", "spark-worker-1"]


def manifest(image: str) -> Object:
    """spark.yaml with the image under test, and the nodes' data where these have it."""
    found: Object = yaml.safe_load((Path(__file__).parent / "spark.yaml").read_text())
    for each in found["items"]:
        if each["kind"] == "Service":
            continue
        pod = each["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        container["image"] = image
        if not (folder := os.environ.get("E2E_DATA")):
            continue
        if each["kind"] == "StatefulSet":
            data = {"name": "data", "hostPath": {"path": f"{folder}/fashion-mnist", "type": "Directory"}}
            pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "data"] + [data]
        if each["kind"] == "Job":
            container["args"].append("--data=/data")
    return found


def ended(namespace: Namespace) -> bool:
    """Whether the driver has succeeded; it must not fail."""
    status = namespace.list("job")["spark-driver"].get("status", {})
    assert not status.get("failed"), namespace.kubectl("logs", "job/spark-driver")
    return status.get("succeeded") == 1


def verified(log: str) -> Object:
    """What scripts/verify_shards.py finds in a log, which has to be proven."""
    found: Object = json.loads(script("verify_shards.py", "--json", "-", text=log).stdout)
    assert found["holds"]
    return found


def test_a_standalone_cluster_in_pods(tasks_image: str, namespace: Namespace) -> None:
    namespace.apply(manifest(tasks_image))
    wait_for("the driver to succeed", lambda: ended(namespace))
    assert len({nodes.of(namespace, pod) for pod in WORKERS}) == 2

    # An executor writes what its rank prints to a file in the worker's folder.
    read = ["--", "sh", "-c", "cat /work/app-*/*/stdout /work/app-*/*/stderr"]
    tallies = verified("".join(namespace.kubectl("exec", pod, *read) for pod in WORKERS))["tallies"]
    ranks = {line["rank"]: line for line in tallies if (line["phase"], line["rank"]) in (("train", 0), ("train", 1))}
    assert [(ranks[rank]["expected"], ranks[rank]["consumed"]) for rank in (0, 1)] == [(30000, 30000)] * 2
    assert {ranks[rank]["pod"].partition("-exec-")[0] for rank in (0, 1)} == set(WORKERS)

    # One worker has the model, which is the one that the driver's last line names.
    log = namespace.kubectl("logs", "job/spark-driver")
    *_, last = [line for line in log.splitlines() if line.startswith("TORCHTALLY {")]
    hashed = ["--", "sh", "-c", "sha256sum /work/output/model.pt || true"]
    found = "".join(namespace.kubectl("exec", pod, *hashed) for pod in WORKERS)
    assert json.loads(last.partition(" ")[2])["model"] == f"sha256:{found.split()[0]}"
