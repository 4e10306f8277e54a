"""How a release is built differs from how this machine builds: on what, for whom, and with what beside it."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]


def plan(target: str, **variables: str) -> dict[str, Any]:
    """What buildx would do."""
    command = ["docker", "buildx", "bake", "--file=docker/docker-bake.hcl", "--print", target]
    # Nothing of who runs this.
    environment = {name: os.environ[name] for name in ("PATH", "HOME")} | variables
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    planned: dict[str, Any] = json.loads(result.stdout)["target"][target]
    return planned


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_release_is_for_all_platforms_on_a_pinned_base_and_says_how_it_was_built(device: str) -> None:
    released = plan(f"release-{device}", REFERENCE="example.com/torchtally:1")
    assert released["target"] == device
    assert released["platforms"] == ["linux/amd64", "linux/arm64"]
    assert re.fullmatch(r"debian:trixie-slim@sha256:[0-9a-f]{64}", released["args"]["BASE"])
    assert released["attest"] == [{"type": "provenance", "mode": "max"}]
    assert released["tags"] == ["example.com/torchtally:1"]
    [output] = released["output"]
    assert (output["type"], output["compression"]) == ("registry", "zstd")


def test_a_machine_builds_for_itself_on_the_base_that_it_has() -> None:
    built = plan("cpu")
    assert not built.keys() & {"platforms", "attest", "output", "args", "contexts", "secret"}
    mirrored = plan("release-cpu", BASE="mirror.example/debian", PLATFORMS="linux/arm64", INDEX_URL="https://a.example")
    assert mirrored["args"] == {"BASE": "mirror.example/debian", "INDEX_URL": "https://a.example"}
    assert mirrored["platforms"] == ["linux/arm64"]


def test_a_release_needs_to_know_where() -> None:
    environment = os.environ | {"REGISTRY": ""}
    command = [str(ROOT / "docker/image.sh"), "release"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "image: REGISTRY is not set; set it to the registry to push to, such as ghcr.io/me\n"
