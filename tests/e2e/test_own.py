"""A user's own script in pods, as a file of the release; and a model evaluated alone."""

import re

import pytest
from cluster import CHART, KIND_VALUES, ROOT, Namespace, args, data_values, own_program, verify
from faults import PODS

from torchtally import events

SCRIPT = ROOT / "examples/own_script.py"
PROVED = {pod: [rank, 500, 500, 0, 0] for rank, pod in enumerate(PODS)}  # of 2000 samples


def test_a_script_that_is_a_file_of_the_release(operator: None, namespace: Namespace) -> None:
    files = ["--set-file", rf"files.own_script\.py={SCRIPT}"]
    options = [*KIND_VALUES, *files, *own_program("python", "/files/own_script.py")]
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
    assert "PyTorchJob demo exists, and its controller ignores changes to its pods (" in other.stderr
    (files,) = [each for name, each in namespace.list("configmap").items() if name.startswith("demo-files-")]
    assert files["data"] == {"own_script.py": SCRIPT.read_text()}


@pytest.mark.nightly
def test_the_model_in_a_claim_is_evaluated_alone(operator: None, namespace: Namespace) -> None:
    namespace.install(*KIND_VALUES, *data_values(), *args("--epochs", "1", "--batch-size", "1000"))
    namespace.wait_for_job("demo", "Succeeded")
    known = namespace.log("demo-master-0")
    (found,) = re.findall(r"test accuracy .*\((\d+ of 10000)\)", known)
    (complete,) = namespace.reported("demo-master-0", events.Complete)

    judging = args("evaluate", "fashion-mnist", "--checkpoint", "/output")
    kept = ["--set", "task=,model.existingClaim=demo-model"]
    namespace.install(*KIND_VALUES, *data_values(), *kept, *judging, release="judge")
    namespace.wait_for_job("judge", "Succeeded")
    pods = [pod.replace("demo", "judge") for pod in PODS]
    assert verify(namespace, job="judge") == {
        ("test", 1): {pod: [rank, 2500, 2500, 0, 0] for rank, pod in enumerate(pods)}
    }
    said = namespace.log("judge-master-0")
    assert f"/output/model.pt ({complete.model}): test loss" in said
    assert f"({found})" in said
    assert f'"model":"{complete.model}"' in said
