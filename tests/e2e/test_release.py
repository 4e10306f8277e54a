"""What a release does: it pushes the chart to a registry, and signs chart and image there, with what is in it."""

import base64
import json
import os
import subprocess
from pathlib import Path

import nodes
import pytest
from cluster import CHART, LIMIT, ROOT, Namespace, image_values, run, verify

pytestmark = pytest.mark.nightly

VALUES = f"--values={CHART / 'ci/restricted-values.yaml'}"


@pytest.fixture
def registry(own_cluster: None) -> str:
    run(str(ROOT / "tools/install.py"), "cosign", "syft")
    return os.environ["E2E_REGISTRY"]


def key_pair(folder: Path) -> dict[str, str]:
    """The environment that signs, and checks, with a new pair of keys."""
    folder.mkdir()
    environment = {"COSIGN_PASSWORD": "not a secret", "COSIGN_KEY": str(folder / "cosign.key")}
    command = ["cosign", "generate-key-pair"]
    subprocess.run(command, cwd=folder, env=os.environ | environment, check=True, capture_output=True, timeout=60)
    return environment | {"COSIGN_PUB": str(folder / "cosign.pub")}


def release(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "tools/release.sh"), *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT)


def test_signed_chart_and_image_by_digest_from_the_first_install_to_the_last_trace(
    restricted_operator: None, registry: str, namespace: Namespace, tmp_path: Path
) -> None:
    ours, others = key_pair(tmp_path / "ours"), key_pair(tmp_path / "others")
    pushed = release({"REGISTRY": registry}, "chart")
    chart, image = pushed.stdout.strip(), os.environ["E2E_IMAGE"]
    assert chart.startswith(f"{registry}/charts/torchtally@sha256:"), pushed.stderr
    for what in (chart, image):
        unsigned = release(ours, "verify", what)
        assert unsigned.returncode != 0 and "signature" in unsigned.stderr
        signed = release(ours, "sign", what)
        assert signed.stdout.strip() == what, signed.stderr
        assert release(ours, "verify", what).stdout.strip() == what
        assert release(others, "verify", what).returncode != 0

    namespace.restrict()
    with nodes.claimed_data(namespace) as data:
        before = namespace.everything()
        source = (f"oci://{chart}", "--plain-http")
        namespace.helm("install", "demo", *source, VALUES, *data, *image_values())
        namespace.wait_for_job("demo", "Succeeded")
        exact = {f"demo-{pod}": [rank, 30000, 30000, 0, 0] for rank, pod in enumerate(("master-0", "worker-0"))}
        assert verify(namespace)["train", 1] == exact
        assert "every sample exactly once" in namespace.helm("test", "demo", "--logs").stdout
        pods = namespace.uids()
        namespace.helm("upgrade", "demo", *source, "--reuse-values", "--set=ttlSecondsAfterFinished=86400")
        assert ttl(namespace) == 86400
        namespace.helm("rollback", "demo", "1")
        assert ttl(namespace) is None
        assert pods.items() <= namespace.uids().items()
        namespace.uninstall(*before, "persistentvolumeclaim/demo-model")


def ttl(namespace: Namespace) -> int | None:
    policy: dict[str, int] = namespace.list("pytorchjob")["demo"]["spec"]["runPolicy"]
    return policy.get("ttlSecondsAfterFinished")


def test_what_is_in_an_image_is_listed_and_signed(registry: str, tmp_path: Path) -> None:
    ours, image = key_pair(tmp_path / "ours"), os.environ["E2E_IMAGE"]
    listed = release(ours, "sbom", image)
    assert listed.stdout.strip() == image, listed.stderr
    assert release(ours, "sign", image).returncode == 0
    assert release(ours, "verify", image).returncode == 0  # one does not hide the other
    checks = f"--key={ours['COSIGN_PUB']}", "--new-bundle-format=false", "--insecure-ignore-tlog", "--type=spdxjson"
    attestation = json.loads(run("cosign", "verify-attestation", *checks, image).stdout)
    sbom = json.loads(base64.b64decode(attestation["payload"]))["predicate"]
    versions = {package["name"]: package.get("versionInfo") for package in sbom["packages"]}
    locked = (ROOT / "docker/requirements-cpu.txt").read_text()
    assert f"\nnumpy=={versions['numpy']} " in locked
    assert {"torch", "torchtally", "tini", "libc6"} <= versions.keys()


def test_a_tag_is_not_signed(registry: str) -> None:
    refused = release({}, "sign", f"{registry}/torchtally:0.1.0-cpu")
    assert refused.returncode == 2 and "is not an image or a chart of the form NAME@sha256:" in refused.stderr
