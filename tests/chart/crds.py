"""The schemas of the kinds that the chart and the docs have, as their controllers publish them.

    python tests/chart/crds.py

writes them anew to crds.json.xz, from the controllers' Go modules (needs Go). The schemas are closed: they refuse
fields that they do not name, which an API server would drop in silence.
"""

import json
import lzma
import subprocess
from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]

FILE = Path(__file__).with_name("crds.json.xz")

# The Go module of each kind's controller, and the file in it.
_OPERATOR = "github.com/kubeflow/training-operator@v1.9.4", "manifests/base/crds"
_TRAINER = "github.com/kubeflow/trainer/v2@v2.3.0", "manifests/base/crds"
_PROMETHEUS = "github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd"
_SIGSTORE = "github.com/sigstore/policy-controller@v0.13.1", "config"
_ARGO_CD = "github.com/argoproj/argo-cd/v3@v3.3.0", "manifests/crds"
_SOURCES = {
    "PyTorchJob": (*_OPERATOR, "kubeflow.org_pytorchjobs.yaml"),
    "TrainJob": (*_TRAINER, "trainer.kubeflow.org_trainjobs.yaml"),
    "TrainingRuntime": (*_TRAINER, "trainer.kubeflow.org_trainingruntimes.yaml"),
    "PodMonitor": (*_PROMETHEUS, "monitoring.coreos.com_podmonitors.yaml"),
    "Application": (*_ARGO_CD, "application-crd.yaml"),
    "ClusterImagePolicy": (*_SIGSTORE, "300-clusterimagepolicy.yaml"),
}


def kept() -> dict[str, Schema]:
    """The schema of each kind."""
    found: dict[str, Schema] = json.loads(lzma.decompress(FILE.read_bytes()))
    return found


def published() -> dict[str, Schema]:
    """The same, from the Go module proxy."""
    return {kind: _schema(_module(module) / folder / file) for kind, (module, folder, file) in _SOURCES.items()}


def _module(name: str) -> Path:
    command = ["go", "mod", "download", "-json", name]
    return Path(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["Dir"])


def _schema(file: Path) -> Schema:
    loaded = yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    [version] = [each for each in loaded["spec"]["versions"] if each["storage"]]
    schema = version["schema"]["openAPIV3Schema"]
    every = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    return _closed(schema | {"properties": every | schema["properties"]})


def _closed(schema: Schema) -> Schema:
    # A property may be named description: only a text is one.
    kept = {key: value for key, value in schema.items() if key != "description" or not isinstance(value, str)}
    kept = {key: _closed(value) if isinstance(value, dict) else value for key, value in kept.items()}
    if "type" in kept and "properties" in kept and not kept.get("x-kubernetes-preserve-unknown-fields"):
        kept["additionalProperties"] = False
    return kept


if __name__ == "__main__":
    FILE.write_bytes(lzma.compress(json.dumps(published(), sort_keys=True).encode(), preset=9))
