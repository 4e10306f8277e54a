"""A user's own script in pods, as a file of the release and in an image of its own; and a model evaluated alone."""

import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import CHART, KIND_VALUES, ROOT, Namespace, data_values, run, verify

from torchtally import events

SCRIPT = ROOT / "examples/own_script.py"
PODS = ["demo-master-0", "demo-worker-0", "demo-worker-1", "demo-worker-2"]
PROVED = {pod: [rank, 500, 500, 0, 0] for rank, pod in enumerate(PODS)}  # of 2000 samples


def arguments(*words: str) -> list[str]:
    """Options that run these in place of a task."""
    return ["--set", "task=", "--set-json", f"args={json.dumps(words)}"]


def test_a_script_that_is_a_file_of_the_release(operator: None, namespace: Namespace) -> None:
    files = ["--set-file", rf"files.own_script\.py={SCRIPT}"]
    options = [*KIND_VALUES, *files, *arguments("run", "--", "python", "/files/own_script.py")]
    namespace.install(*options)
    namespace.wait_for_job("demo", "Succeeded")
    shards = verify(namespace)
    assert shards == {("train", epoch): PROVED for epoch in (1, 2, 3)}
    assert "every sample exactly once" in namespace.helm("test", "demo", "--logs").stdout

    # Another script for a job that is not started again is refused, and nothing is changed.
    other = namespace.helm(
        "upgrade", "demo", str(CHART), "--reuse-values", "--set", r"files.own_script\.py=pass", check=False
    )
    assert other.returncode != 0
    assert "PyTorchJob demo exists, and its controller ignores changes to its pods:" in other.stderr
    (files,) = [each for name, each in namespace.list("configmap").items() if name.startswith("demo-files-")]
    assert files["data"] == {"own_script.py": SCRIPT.read_text()}


@pytest.fixture
def image(own_cluster: None, tmp_path: Path) -> Iterator[str]:
    """An image with a script in it, in the registry of the image under test: repository and tag."""
    base = os.environ["E2E_IMAGE"]
    (tmp_path / "train.py").write_bytes(SCRIPT.read_bytes())
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nWORKDIR /work\nCOPY train.py .\n")
    name = f"{base.rpartition('/')[0]}/mine:{uuid.uuid4().hex[:12]}"
    run("docker", "build", "--tag", name, str(tmp_path))
    run("docker", "push", name)
    yield name
    run("docker", "image", "rm", name)


@pytest.mark.nightly
def test_a_script_in_an_image_of_its_own(operator: None, image: str, namespace: Namespace) -> None:
    repository, _, tag = image.rpartition(":")
    options = [*KIND_VALUES, "--set", f"image.repository={repository},image.tag={tag}"]
    namespace.helm("install", "demo", str(CHART), *options, *arguments("run", "--", "python", "train.py"))
    namespace.wait_for_job("demo", "Succeeded")
    assert verify(namespace) == {("train", epoch): PROVED for epoch in (1, 2, 3)}


@pytest.mark.nightly
def test_the_model_in_a_claim_is_evaluated_alone(operator: None, namespace: Namespace) -> None:
    training = ["--set-json", 'args=["--epochs", "1", "--batch-size", "1000"]']
    namespace.install(*KIND_VALUES, *data_values(), *training)
    namespace.wait_for_job("demo", "Succeeded")
    known = namespace.log("demo-master-0")
    (found,) = re.findall(r"test accuracy .*\((\d+ of 10000)\)", known)
    (complete,) = namespace.reported("demo-master-0", events.Complete)

    judging = [
        "--set",
        "model.existingClaim=demo-model",
        *arguments("evaluate", "fashion-mnist", "--checkpoint", "/output"),
    ]
    namespace.install(*KIND_VALUES, *data_values(), *judging, release="judge")
    namespace.wait_for_job("judge", "Succeeded")
    pods = [pod.replace("demo", "judge") for pod in PODS]
    assert verify(namespace, job="judge") == {
        ("test", 1): {pod: [rank, 2500, 2500, 0, 0] for rank, pod in enumerate(pods)}
    }
    said = namespace.log("judge-master-0")
    assert f"/output/model.pt ({complete.model}): test loss" in said
    assert f"({found})" in said
    assert f'"model":"{complete.model}"' in said
