"""The observer as a manifest carries it: a ConfigMap, a volume of it, and PYTHONPATH."""

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import torchtally_observer
from torchtally.cluster.observer_volume import VOLUME

SOURCE = Path(torchtally_observer.__path__[0])
NAME = VOLUME  # the ConfigMap's has a hash behind it
FOLDER = "/opt/torchtally-observer"  # in a container
PATH = "PYTHONPATH"
MOUNT = {"name": NAME, "mountPath": FOLDER, "readOnly": True}
MANAGER = "torchtally.io/observer"  # of a TrainJob's patch


def joined(*paths: str) -> str:
    """A value of PYTHONPATH: these paths, then the observer."""
    return ":".join([*filter(None, paths), FOLDER])


def volume() -> dict[str, Any]:
    """Of a pod."""
    return {"name": NAME, "configMap": {"name": map_name()}}


def map_name() -> str:
    """Of the ConfigMap. That of another version has another name, so that a pod that runs keeps its own."""
    return f"{NAME}-{hashlib.sha256(repr(sorted(files().items())).encode()).hexdigest()[:8]}"


def is_own_map(name: str) -> bool:
    """Whether a ConfigMap of this name carries an observer, of whichever version."""
    return re.fullmatch(f"{NAME}(-[0-9a-f]{{8}})?", name) is not None


def config_map(namespace: str) -> dict[str, Any]:
    """The observer, in this namespace; "" for that of whoever applies it."""
    metadata: dict[str, Any] = {"name": map_name(), "labels": {"app.kubernetes.io/name": NAME}}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": dict(files())}


@cache
def files() -> dict[str, str]:
    """Those of the observer, by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCE.glob("*.py"))}
