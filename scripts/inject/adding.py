"""Adds the observer to a manifest."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from .documents import Document, dumped, parted
from .errors import BadManifest
from .nodes import Node
from .observer import FOLDER, MANAGER, MOUNT, NAME, PATH, config_map, joined, map_name, volume
from .removing import cleaned
from .workloads import TRAINER, Workload, found, item

_IGNORES = re.compile(r"\bpython[\d.]*(?: +-[a-zA-Z]+)* +-[a-zA-Z]*[IES]")
_JOBS = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")  # in a TrainJob's patch


def injected(text: str, containers: Sequence[str] = (), pythonpath: str = "") -> tuple[str, list[str]]:
    """A manifest whose containers are observed, and what is to be told of it.

    Args:
        text: A stream of documents.
        containers: Names of those that train; without any, the usual one of each kind, or the only one.
        pythonpath: What the image sets PYTHONPATH to, which a variable of the manifest hides.

    Raises:
        BadManifest: It cannot be read, or holds no pods.
    """
    namespaces: dict[str, None] = {}
    text, notes = cleaned(text)
    parts = []
    for part, line in parted(text):
        document = Document(part, line)
        for workload in found(document.root) if document.root else ():
            notes += _observe(document, workload, containers, pythonpath)
            namespaces[workload.namespace] = None
        parts.append(document.text)
    whole = "".join(parts)
    maps = "---\n".join(dumped(config_map(namespace)) for namespace in namespaces)
    return maps + ("" if whole.startswith("---") else "---\n") + whole, notes


def _observe(document: Document, workload: Workload, wanted: Sequence[str], pythonpath: str) -> Iterator[str]:
    if workload.kind == "TrainJob":
        names = _patch(document, workload, wanted, pythonpath)
    else:
        names = []
        for pod, containers in workload.trains(wanted):
            _add_volume(document, pod)
            for container in containers:
                _mount(document, workload, container, pythonpath, _offset(pod))
                names.append(container.text("name"))
                yield from _warnings(workload, container, pythonpath)
    hidden = "" if pythonpath else f"; if its image sets {PATH}, give that value by --pythonpath"
    yield f"{workload.title}: container {' and '.join(dict.fromkeys(names))} will be observed{hidden}"


def _add_volume(document: Document, pod: Node) -> None:
    if there := item(pod, "volumes", "name", NAME):
        name = there.get("configMap", "name")
        if name and name.scalar != map_name():  # an older one
            document.replace(name, map_name())
    else:
        _add(document, pod, "volumes", volume(), _offset(pod))


def _mount(document: Document, workload: Workload, container: Node, pythonpath: str, offset: int) -> None:
    _add_path(
        document, f"{workload.title}: {PATH} of container {container.text('name')}", container, pythonpath, offset
    )
    if not item(container, "volumeMounts", "name", NAME):
        _add(document, container, "volumeMounts", MOUNT, offset)


def _add_path(document: Document, what: str, container: Node, pythonpath: str, offset: int) -> None:
    own = item(container, "env", "name", PATH)
    if own is None:
        _add(document, container, "env", {"name": PATH, "value": joined(pythonpath)}, offset)
    elif value := own.get("value"):
        if FOLDER not in (value.scalar or "").split(":"):
            document.replace(value, joined(value.scalar or "", pythonpath))
    elif own.get("valueFrom"):
        raise BadManifest(f"{what} comes from another object, which cannot be extended: give its value in the manifest")
    else:
        document.set(own, "value", joined(pythonpath), offset)


def _patch(document: Document, workload: Workload, wanted: Sequence[str], pythonpath: str) -> list[str]:
    """Of a TrainJob, whose pods are in a runtime."""
    if other := [name for name in wanted if name != TRAINER]:
        raise BadManifest(f"{workload.title} has no container {' or '.join(other)}: only {TRAINER} trains")
    spec = workload.root.get("spec")
    if spec is None:
        raise BadManifest(f"{workload.title} has no spec")
    offset = _offset(spec)
    if trainer := spec.get("trainer"):
        _add_path(document, f"{workload.title}: {PATH} of its trainer", trainer, pythonpath, offset)
    else:
        document.set(spec, "trainer", {"env": [{"name": PATH, "value": joined(pythonpath)}]}, offset)
    if (patch := item(spec, "runtimePatches", "manager", MANAGER)) and (jobs := patch.get(*_JOBS)):
        for each in jobs.children:
            if pod := each.get("template", "spec", "template", "spec"):
                _add_volume(document, pod)
    else:
        pod_spec = {"volumes": [volume()], "containers": [{"name": TRAINER, "volumeMounts": [MOUNT]}]}
        node = {"name": TRAINER, "template": {"spec": {"template": {"spec": pod_spec}}}}
        runtime = {"template": {"spec": {"replicatedJobs": [node]}}}
        _add(document, spec, "runtimePatches", {"manager": MANAGER, "trainingRuntimeSpec": runtime}, offset)
    return [TRAINER]


def _add(document: Document, mapping: Node, key: str, item: Any, offset: int) -> None:
    """Add an item to a list, which is made if need be."""
    if there := mapping.get(key):
        if there.mapping or there.scalar is not None:
            raise BadManifest(f"{key} of {mapping.text('name') or 'a pod'} must be a list")
        document.append(there, item)
    else:
        document.set(mapping, key, [item], offset)


def _warnings(workload: Workload, container: Node, pythonpath: str) -> Iterator[str]:
    name = container.text("name")
    words = [each for key in ("command", "args") if (found := container.get(key)) for each in found.children]
    if option := _IGNORES.search(" ".join(each.scalar or "" for each in words)):
        yield f"warning: {workload.title}: `{option[0]}` ignores {PATH}, so container {name} is not observed"
    if container.get("envFrom") and not pythonpath:
        yield (
            f"warning: {workload.title}: if envFrom of container {name} sets {PATH}, give its value by --pythonpath:"
            " it is hidden"
        )


def _offset(mapping: Node) -> int:
    """By how much lists stand to the right of their keys."""
    lists = ((key, each) for key, each in mapping.pairs if each.items and not each.flow)
    return next((each.column - key.column for key, each in lists), 0)
