"""A program that knows nothing of torchtally, in an image made from ours: the logs alone say what it was handed out."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import faults
import nodes
import pytest
import task_data
from cluster import (
    CONTAINER,
    KIND_VALUES,
    ROOT,
    Namespace,
    Object,
    built,
    own_program,
    pytorchjob,
    replica,
    script,
    wait_for,
)

PROGRAM = Path(__file__).parent / "blog.py"
MAIN = ["python", "main.py"]
FAST = ["--batch-size", "500", "--epochs", "1"]
LINE = "TORCHTALLY-OBSERVED {"
SAME_ORDER = "the order is the same in each of 2 passes; the program never calls set_epoch(epoch) of its sampler"

HERE = ROOT / "build/e2e/shared"  # the nodes' folder on this machine (tools/e2e.sh)
WHOLE, FEW = "torchvision", "torchvision-few"  # folders in it: 60000 samples for the training, and 10000


@pytest.fixture(scope="module")
def image(own_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with the program in it."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "main.py").write_bytes(PROGRAM.read_bytes())
    with built("blog", "FROM {base}\nCOPY main.py .\n", folder) as name:
        yield name


@pytest.fixture(scope="module")
def data(own_cluster: None) -> None:
    """The data as torchvision keeps it, in folders of all nodes."""
    for name in (WHOLE, FEW):
        (HERE / name / "FashionMNIST/raw").mkdir(parents=True, exist_ok=True)
    for file in task_data.fetched("fashion-mnist").glob("*.gz"):
        content = gzip.decompress(file.read_bytes())
        (HERE / WHOLE / "FashionMNIST/raw" / file.stem).write_bytes(content)
        if file.stem.startswith("t10k-"):
            for split in ("t10k", "train"):
                (HERE / FEW / "FashionMNIST/raw" / file.stem.replace("t10k", split)).write_bytes(content)


def job(image: str, folder: str, *replicas: tuple[int, list[str]], name: str = "demo", **container: object) -> Object:
    """Of the master and of the workers, the number and the command."""
    mounts = [{"name": "data", "mountPath": "/data", "readOnly": True}]
    volumes = [{"name": "data", "hostPath": {"path": folder}}]
    specs = {}
    for kind, (count, command) in zip(("Master", "Worker"), replicas, strict=False):
        pod = {"name": CONTAINER, "image": image, "command": command, "volumeMounts": mounts, **container}
        spec = {"containers": [pod], "volumes": volumes, "terminationGracePeriodSeconds": 1}
        specs[kind] = replica(spec, count)
    return pytorchjob(specs, name)


def judged(*arguments: str) -> tuple[int, str]:
    """The exit status of scripts/verify_shards.py, and what it prints, with one space between a table's columns."""
    ended = script("verify_shards.py", *arguments, check=False)
    return ended.returncode, re.sub(" +", " ", ended.stdout + ended.stderr)


def test_the_program_of_a_blog(operator: None, image: str, data: None, namespace: Namespace) -> None:
    in_a_shell = ["bash", "-c", "python main.py"]
    namespace.apply(job(image, f"{nodes.SHARED}/{WHOLE}", (1, MAIN), (3, in_a_shell)))
    never = [{"name": "TORCHTALLY_OBSERVE", "value": "never"}]
    namespace.apply(job(image, f"{nodes.SHARED}/{FEW}", (1, [*MAIN, *FAST]), name="silent", env=never))
    for name in ("demo", "silent"):
        namespace.wait_for_job(name, "Succeeded")
    namespace.wait_for_pods_to_end()

    status, said = judged("--job", "demo", "-n", namespace.name, "--expect-per-pod", "15000")
    assert status == 0, said
    for rank, pod in enumerate(faults.PODS):
        assert f"train 1-2 {pod} {rank} 60000 15000\n" in said
    assert "train 1-2 all 4 60000 60000 0 0 ✓ each sample handed out exactly once" in said
    assert SAME_ORDER in said and "✓ observed: 4 ranks, 2 passes, no fault" in said
    status, said = judged("--job", "demo", "-n", namespace.name, "--expect-per-pod", "14000")
    assert status == 1, said
    assert "pod demo-worker-2 was handed out 15000 samples, but --expect-per-pod is 14000" in said

    log = namespace.log("silent-master-0")
    assert "epoch 1 of 1: loss" in log and "TORCHTALLY" not in log


def test_a_job_that_fails_in_the_middle(operator: None, image: str, data: None, namespace: Namespace) -> None:
    endless = [*MAIN, "--batch-size", "500", "--epochs", "100000"]
    namespace.apply(job(image, f"{nodes.SHARED}/{WHOLE}", (1, endless), (1, endless)))
    pods = faults.PODS[:2]
    wait_for("passes of both pods", lambda: all(namespace.log(pod).count(LINE) > 1 for pod in pods))
    status, said = judged("--job", "demo", "-n", namespace.name)
    assert status == 4 and "PyTorchJob demo is running" in said, said

    killed, complaint = faults.inside(namespace, "demo-worker-0", "kill", "all", "any")
    assert killed, complaint
    namespace.wait_for_job("demo", "Failed")
    status, said = judged("--job", "demo", "-n", namespace.name)
    assert status == 5 and "PyTorchJob demo has failed" in said, said
    for text in ("demo-master-0 0 60000 30000\n", "demo-worker-0 1 60000 30000\n", "exactly once"):
        assert text in said

    namespace.kubectl("delete", "pytorchjob", "demo")
    status, said = judged("--job", "demo", "-n", namespace.name)
    assert status == 2 and "demo in namespace" in said, said  # of which kinds, the cluster tells


def test_a_file_of_the_release_is_observed(operator: None, data: None, namespace: Namespace) -> None:
    program = [*own_program("python", "/files/main.py", *FAST), "--set-file", rf"files.main\.py={PROGRAM}"]
    namespace.install(*KIND_VALUES, *program, "--set", f"data.hostPath.path={nodes.SHARED}/{FEW},workers=1")
    namespace.wait_for_job("demo", "Succeeded")
    assert "✓ observed: 2 ranks, 1 pass, no fault" in namespace.helm("test", "demo", "--logs").stdout


def test_a_mistake_is_named(image: str, data: None, tmp_path: Path) -> None:
    """In containers of this machine, by the manifest for the cluster."""
    command = [*MAIN, *FAST, "--processes", "2", "--mistake", "local-rank"]
    named = "the samplers of ranks 0 to 3 have rank 0, 1, 0, and 1 of 4, which looks like the local rank"
    manifest, log = tmp_path / "job.json", tmp_path / "log"
    manifest.write_text(json.dumps(job(image, str(HERE / FEW), (1, command), (1, command), name="blog")))
    assert named in script("run_local.py", "-f", str(manifest), "--docker", "--log", str(log)).stderr
    status, said = judged(str(log))
    assert status == 1 and named in said, said
