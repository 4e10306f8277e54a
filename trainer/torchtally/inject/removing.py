"""Takes the observer out of a manifest, and what an API server has added to it."""

from collections.abc import Callable

from torchtally.errors import Refused
from torchtally.inject.documents import Document, parted
from torchtally.inject.nodes import Node
from torchtally.inject.observer import FOLDER, MANAGER, NAME, PATH, is_own_map
from torchtally.inject.workloads import KINDS, Workload, containers_of, edited, found, item

_OF_SERVER = ("creationTimestamp", "generation", "managedFields", "selfLink", "uid", "resourceVersion")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_REPLACE = "`kubectl replace --force -f -`"
_OF_A_JOB = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name")


def removed(text: str) -> tuple[str, list[str]]:
    """A manifest that is observed no more, and what is to be told of it. Raises Refused."""
    return cleaned(text, _take_out_observer)


def cleaned(text: str, *further: Callable[[Document, Workload], str | None]) -> tuple[str, list[str]]:
    """Without ConfigMaps of the observer, what an API server has added, and what further functions take out."""
    parts, seen, notes, count = [], list[str](), list[str](), 0
    for part, line in parted(text):
        document = Document(part, line)
        if document.root and _is_own(document.root):
            continue
        workloads = list(found(document.root))
        count += len(workloads)
        seen += [_title(document.root)] if document.root and not workloads else []
        for number, workload in enumerate(workloads):
            _check(workload)
            if key := workload.root.twice():
                raise Refused(f"{workload.title} has the key {key} twice in one place: remove one of them")
            if workload.root.get("metadata", "resourceVersion"):
                notes.append(
                    f"{workload.title} exists, and its pods do not change: {_REPLACE} ends it and starts it again"
                )
            for take_out in (_take_out_server, *further):
                part = edited(part, line, number, take_out)
        parts.append(part)
    if not count:
        raise Refused(f"holds no {KINDS}: it holds {', '.join(seen) or 'nothing'}")
    return "".join(parts), notes


def _check(workload: Workload) -> None:
    owners = workload.root.get("metadata", "ownerReferences")
    for owner in owners.children if owners else ():
        if owner.text("controller") == "true":
            of = f"{owner.text('kind')} {owner.text('name')}"
            raise Refused(f"{workload.title} belongs to {of}, which makes it: give the manifest of {of}")
    if workload.kind == "Pod" and workload.root.get("metadata", "uid"):
        raise Refused(
            f"{workload.title} exists, and a Pod's containers cannot be changed: give the file that it was made from"
        )


def _take_out_observer(document: Document, workload: Workload) -> str | None:
    spec = workload.root.get("spec")
    new = None
    if spec:
        new = _take_out_item(document, spec, "runtimePatches", "manager", MANAGER)
        if new is None and (trainer := spec.get("trainer")):
            new = _take_out_path(document, trainer)
    for pod in workload.pods:
        for container in containers_of(pod):
            new = new or _take_out_item(document, container, "volumeMounts", "mountPath", FOLDER)
            new = new or _take_out_path(document, container)
        own = item(pod, "volumes", "name", NAME)
        if new is None and own and is_own_map(own.text("configMap", "name")):
            new = _take_out_item(document, pod, "volumes", "name", NAME)
    return new


def _take_out_path(document: Document, container: Node) -> str | None:
    own = item(container, "env", "name", PATH)
    value = own.written("value") if own else None
    folders = (value.scalar or "").split(":") if value else []
    if value is None or FOLDER not in folders:
        return None
    if folders == [FOLDER]:
        return _take_out_item(document, container, "env", "name", PATH)
    return document.replaced(value, ":".join(folder for folder in folders if folder != FOLDER))


def _take_out_item(document: Document, mapping: Node, key: str, name: str, value: str) -> str | None:
    """Take an item out of a list, and the list if it has no other; None if there is none."""
    there, own = mapping.get(key), item(mapping, key, name, value)
    if there is None or own is None:
        return None
    if there.flow or len(there.items) > 1:
        return document.without(there, own)
    return document.without(mapping, key)


def _take_out_server(document: Document, workload: Workload) -> str | None:
    """Take out one thing that the API server has added to an object that it gave."""
    metadata = workload.root.get("metadata")
    if metadata is None or not metadata.get("resourceVersion"):
        return None
    spec, annotations = workload.root.get("spec"), metadata.get("annotations")
    if annotations and annotations.get(_APPLIED):
        alone = len(annotations.pairs) == 1
        return document.without(metadata, "annotations") if alone else document.without(annotations, _APPLIED)
    edits = [(workload.root, "status"), *((metadata, field) for field in _OF_SERVER[:-1])]
    if workload.kind == "Job" and spec:
        edits.insert(0, (spec, "selector"))
        labels = (metadata.get("labels"), spec.get("template", "metadata", "labels"))
        edits += [(each, label) for each in labels if each for label in _OF_A_JOB]
    edits.append((metadata, _OF_SERVER[-1]))  # which tells that there are others
    return next((new for each, key in edits if (new := document.without(each, key)) is not None), None)


def _is_own(root: Node) -> bool:
    is_map = root.text("kind") == "ConfigMap" and is_own_map(root.text("metadata", "name"))
    return is_map and root.text("metadata", "labels", "app.kubernetes.io/name") == NAME


def _title(root: Node) -> str:
    kind, version = root.text("kind") or "an object without a kind", root.text("apiVersion")
    group = f" of {version.rpartition('/')[0]}" if "/" in version else ""
    return f"{kind} {root.text('metadata', 'name')}".rstrip() + group
