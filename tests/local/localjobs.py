"""Small PyTorchJobs of shell pods, and ways to run them."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from called import called

from torchtally.commands import local, verify
from torchtally.local import manifest
from torchtally.local.controller import Status, Verdict
from torchtally.local.job import LocalJob

RUN_LOCAL = Path(__file__).parents[2] / "scripts/run_local.py"
LIMIT = 240.0  # seconds for anything to come
Object = dict[str, Any]


def pytorchjob(
    master: str | None = None, worker: str | None = None, workers: int = 1, policy: str | None = None, **spec: Any
) -> Object:
    """A PyTorchJob whose Master and Workers run these shell scripts."""
    replicas = {}
    for kind, script, count in (("Master", master, 1), ("Worker", worker, workers)):
        if script is not None:
            replicas[kind] = {"replicas": count, "template": {"spec": {"containers": [shell(script)]}}}
            if policy:
                replicas[kind]["restartPolicy"] = policy
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "demo"},
        "spec": {"pytorchReplicaSpecs": replicas, **spec},
    }


def shell(script: str) -> Object:
    return {"name": "pytorch", "image": "debian:trixie-slim", "command": ["bash", "-c", script]}


def pod_spec(document: Object, kind: str = "Master") -> Object:
    spec: Object = document["spec"]["pytorchReplicaSpecs"][kind]["template"]["spec"]
    return spec


def container(document: Object, kind: str = "Master") -> Object:
    found: Object = pod_spec(document, kind)["containers"][0]
    return found


def write(folder: Path, *documents: Object | str, name: str = "job.yaml") -> str:
    texts = [item if isinstance(item, str) else yaml.safe_dump(item, sort_keys=False) for item in documents]
    path = folder / name
    path.write_text("\n---\n".join(texts))
    return str(path)


def load(folder: Path, document: Object) -> LocalJob:
    return manifest.load(write(folder, document)).job


@dataclass(frozen=True)
class Run:
    """A job that has ended, with the lines that its user saw, and what the runner said."""

    verdict: Verdict
    status: dict[str, Status]
    lines: list[str]
    said: list[str]


def command(file: str, *options: str) -> list[str]:
    return [sys.executable, str(RUN_LOCAL), "-f", file, *options]


def run_script(file: str, *options: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/run_local.py to its end, in this process, which has imported what it needs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return called(local.main, *command(file, *options)[2:], given=stdin)


def verified(log: Path, lines: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    """What `torchtally verify` says of these lines, written to a log."""
    log.write_text("\n".join(lines))
    return called(verify.main, log, *options)


def start_script(file: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(file, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def read(process: subprocess.Popen[str], *wanted: str) -> list[str]:
    """Read a runner's lines until each of these texts was in one."""
    assert process.stdout is not None
    lines: list[str] = []
    missing = set(wanted)
    while missing:
        line = process.stdout.readline()
        assert line, f"ended without {missing}: {lines} {process.stderr.read() if process.stderr else ''}"
        lines.append(line.rstrip("\n"))
        missing -= {text for text in missing if text in line}
    return lines
