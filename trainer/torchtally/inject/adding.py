"""Adds the observer to a manifest, one edit of its text after the other: nodes with an alias have one place only."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from torchtally.errors import Refused
from torchtally.inject.documents import Document, dumped, parted
from torchtally.inject.nodes import Node
from torchtally.inject.observer import (
    FOLDER,
    MANAGER,
    MOUNT,
    NAME,
    PATH,
    config_map,
    is_own_map,
    joined,
    map_name,
    volume,
)
from torchtally.inject.removing import cleaned
from torchtally.inject.workloads import TRAINER, Workload, chosen, edited, found, item

_IGNORES = re.compile(r"\bpython[\d.]*(?: +-[a-zA-Z]+)* +-[a-zA-Z]*[IES]")
_SETS = re.compile(r"\bPYTHONPATH=(?!\S*\$\{?PYTHONPATH)\S*")
_JOBS = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")  # in a TrainJob's patch


def injected(text: str, containers: Sequence[str] = (), pythonpath: str = "") -> tuple[str, list[str]]:
    """A manifest whose containers are observed, and what is to be told of it.

    Args:
        text: A stream of documents.
        containers: Names of those that train; without any, the usual one of each kind, or the only one.
        pythonpath: What the image sets PYTHONPATH to, which a variable of the manifest hides.

    Raises:
        Refused: It cannot be read, or holds no pods.
    """
    text, notes = cleaned(text)
    documents = [(part, line, list(found(Document(part, line).root))) for part, line in parted(text)]
    every = [each for _, _, own in documents for each in own]
    observed = {id(each) for each in chosen(every, containers)}
    namespaces: dict[str, None] = {}
    parts = []
    for part, line, workloads in documents:
        for number, workload in enumerate(workloads):
            if id(workload) in observed:
                notes += _notes(workload, containers, pythonpath)
                namespaces[workload.namespace] = None
                part = edited(
                    part, line, number, lambda own, each: next(_edits(own, each, containers, pythonpath), None)
                )
            else:
                notes.append(f"{workload.title} stays as it is: name its container by --container to observe it")
        parts.append(part)
    whole = "".join(parts)
    maps = "---\n".join(dumped(config_map(namespace)) for namespace in namespaces)
    return maps + ("" if whole.startswith("---") else "---\n") + whole, notes


def _edits(document: Document, workload: Workload, wanted: Sequence[str], pythonpath: str) -> Iterator[str]:
    """The texts with one addition that lacks."""
    if workload.kind == "TrainJob":
        yield from _patch(document, workload, pythonpath)
        return
    for pod, containers in workload.trains(wanted):
        for container in containers:
            what = f"{workload.title}: {PATH} of container {container.text('name')}"
            yield from _path(document, what, container, pythonpath, _offset(pod))
            own = item(container, "volumeMounts", "mountPath", FOLDER)
            if own and own.text("name") != NAME:
                raise Refused(f"{workload.title} mounts a volume of its own at {FOLDER}: mount it elsewhere")
            if own is None:
                yield _added(document, container, "volumeMounts", MOUNT, _offset(pod))
        yield from _volume(document, workload, pod)


def _volume(document: Document, workload: Workload, pod: Node) -> Iterator[str]:
    there = item(pod, "volumes", "name", NAME)
    if there is None:
        yield _added(document, pod, "volumes", volume(), _offset(pod))
        return
    source = there.get("configMap")
    name = source.written("name") if source else None
    if name is None or not is_own_map(name.scalar or ""):
        raise Refused(f"{workload.title} has a volume {NAME} of its own: give it another name")
    if name.scalar != map_name():  # an older one
        yield document.replaced(name, map_name())


def _path(document: Document, what: str, container: Node, pythonpath: str, offset: int) -> Iterator[str]:
    own = item(container, "env", "name", PATH)
    if own is None:
        yield _added(document, container, "env", {"name": PATH, "value": joined(pythonpath)}, offset)
        return
    if own.get("valueFrom"):
        raise Refused(f"{what} comes from another object, which cannot be extended: give its value in the manifest")
    value, written = own.get("value"), own.written("value")
    if value is None or written is None:
        yield _with(document, own, "value", joined(pythonpath), offset)
    elif FOLDER not in (value.scalar or "").split(":"):
        if written.anchor:
            raise Refused(f"{what} is an anchor for other values, too: write these out")
        yield document.replaced(written, joined((value.scalar or "").strip(), pythonpath))


def _patch(document: Document, workload: Workload, pythonpath: str) -> Iterator[str]:
    """Of a TrainJob, whose pods are in a runtime."""
    spec = workload.root.get("spec")
    if spec is None:
        raise Refused(f"{workload.title} has no spec")
    offset = _offset(spec)
    if trainer := spec.get("trainer"):
        yield from _path(document, f"{workload.title}: {PATH} of its trainer", trainer, pythonpath, offset)
    else:
        yield _with(document, spec, "trainer", {"env": [{"name": PATH, "value": joined(pythonpath)}]}, offset)
    if (patch := item(spec, "runtimePatches", "manager", MANAGER)) and (jobs := patch.get(*_JOBS)):
        for each in jobs.children:
            if pod := each.get("template", "spec", "template", "spec"):
                yield from _volume(document, workload, pod)
    else:
        pod_spec = {"volumes": [volume()], "containers": [{"name": TRAINER, "volumeMounts": [MOUNT]}]}
        node = {"name": TRAINER, "template": {"spec": {"template": {"spec": pod_spec}}}}
        runtime = {"template": {"spec": {"replicatedJobs": [node]}}}
        yield _added(document, spec, "runtimePatches", {"manager": MANAGER, "trainingRuntimeSpec": runtime}, offset)


def _added(document: Document, mapping: Node, key: str, new: Any, offset: int) -> str:
    """With an item in a list, which is made if need be."""
    there = mapping.get(key)
    if there is None:
        return _with(document, mapping, key, [new], offset)
    if there.mapping or there.scalar is not None:
        raise Refused(f"{key} of {mapping.text('name') or 'a pod'} must be a list, not {there.scalar or 'a mapping'}")
    return document.append(there, new)


def _with(document: Document, mapping: Node, key: str, value: Any, offset: int) -> str:
    """With a key that is not there, or has no value: then, without it."""
    return document.without(mapping, key) or document.set(mapping, key, value, offset)


def _notes(workload: Workload, wanted: Sequence[str], pythonpath: str) -> Iterator[str]:
    if workload.kind == "TrainJob":
        trainer = workload.root.get("spec", "trainer")
        pairs = [(TRAINER, trainer)]
    else:
        pairs = [(each.text("name"), each) for _, containers in workload.trains(wanted) for each in containers]
    names = {}
    for name, container in pairs:
        words = [
            each
            for key in ("command", "args")
            if (parts := container and container.get(key))
            for each in parts.children
        ]
        text = " ".join(each.scalar or "" for each in words)
        if ignored := _IGNORES.search(text):
            yield f"warning: {workload.title}: container {name} is not observed: `{ignored[0]}` ignores {PATH}"
            continue
        if replaced := _SETS.search(text):
            yield f"warning: {workload.title}: container {name} is not observed where `{replaced[0]}` hides {PATH}"
        names[name] = container
    hidden = any(not (each and item(each, "env", "name", PATH)) for each in names.values()) and not pythonpath
    if names:
        also = f"; if the image, or envFrom, sets {PATH}, give that value by --pythonpath" if hidden else ""
        yield f"{workload.title}: container {' and '.join(names)} will be observed{also}"


def _offset(mapping: Node) -> int:
    """By how much lists stand to the right of their keys."""
    lists = ((key, each) for key, each in mapping.pairs if each.items and not each.flow)
    return next((each.column - key.column for key, each in lists), 0)
