"""Takes the observer out of a manifest, and what an API server has added to it."""

from collections.abc import Callable

from .documents import Document, parted
from .errors import BadManifest
from .nodes import Node
from .observer import FOLDER, MANAGER, NAME, PATH
from .workloads import KINDS, Workload, containers_of, found, item

_OF_SERVER = ("creationTimestamp", "generation", "managedFields", "selfLink", "uid", "resourceVersion")
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_REPLACE = "`kubectl replace --force -f -`"
_OF_A_JOB = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name")


def removed(text: str) -> tuple[str, list[str]]:
    """A manifest that is observed no more, and what is to be told of it. Raises BadManifest."""
    return cleaned(text, _take_out_observer)


def cleaned(text: str, *further: Callable[[Document, Workload], bool]) -> tuple[str, list[str]]:
    """Without ConfigMaps of the observer, what an API server has added, and what further functions take out."""
    parts, seen, notes = [], list[str](), list[str]()
    for part, line in parted(text):
        document = Document(part, line)
        if document.root and _is_own(document.root):
            continue
        workloads = list(found(document.root)) if document.root else []
        seen += [_title(document.root)] if document.root and not workloads else []
        for number, workload in enumerate(workloads):
            _check(workload)
            if workload.root.get("metadata", "resourceVersion"):
                notes.append(f"{workload.title} exists, and its pods stay as they are: {_REPLACE} replaces it")
            for take_out in (_take_out_server, *further):
                part = _until_none(part, line, number, take_out)
        parts.append(part)
    if not any(list(found(root)) for root in (Document(part).root for part in parts) if root):
        raise BadManifest(f"holds no {KINDS}: it holds {', '.join(seen) or 'nothing'}")
    return "".join(parts), notes


def _until_none(text: str, line: int, number: int, take_out: Callable[[Document, Workload], bool]) -> str:
    """A text without all that a function takes out: one thing at a time, as edits must not overlap."""
    while True:
        document = Document(text, line)
        assert document.root
        if not take_out(document, list(found(document.root))[number]):
            return text
        text = document.text


def _check(workload: Workload) -> None:
    owners = workload.root.get("metadata", "ownerReferences")
    for owner in owners.children if owners else ():
        if owner.text("controller") == "true":
            of = f"{owner.text('kind')} {owner.text('name')}"
            raise BadManifest(f"{workload.title} belongs to {of}, which makes it: give the manifest of {of}")
    if workload.kind == "Pod" and workload.root.get("metadata", "uid"):
        raise BadManifest(
            f"{workload.title} exists, and a Pod's containers cannot be changed: give the file that it was made from"
        )


def _take_out_observer(document: Document, workload: Workload) -> bool:
    if spec := workload.root.get("spec"):
        if (trainer := spec.get("trainer")) and _take_out_path(document, trainer):
            return True
        if _take_out_item(document, spec, "runtimePatches", "manager", MANAGER):
            return True
    for pod in workload.pods:
        for container in containers_of(pod):
            if _take_out_item(document, container, "volumeMounts", "name", NAME) or _take_out_path(document, container):
                return True
        if _take_out_item(document, pod, "volumes", "name", NAME):
            return True
    return False


def _take_out_path(document: Document, container: Node) -> bool:
    own = item(container, "env", "name", PATH)
    value = own.get("value") if own else None
    folders = (value.scalar or "").split(":") if value else []
    if value is None or FOLDER not in folders:
        return False
    if folders == [FOLDER]:
        return _take_out_item(document, container, "env", "name", PATH)
    document.replace(value, ":".join(folder for folder in folders if folder != FOLDER))
    return True


def _take_out_item(document: Document, mapping: Node, key: str, name: str, value: str) -> bool:
    """Take an item out of a list, and the list if it has no other."""
    there, found = mapping.get(key), item(mapping, key, name, value)
    if there is None or found is None:
        return False
    return document.remove(there, found) if there.flow or len(there.items) > 1 else document.remove(mapping, key)


def _take_out_server(document: Document, workload: Workload) -> bool:
    """Take out one thing that the API server has added to an object that it gave."""
    metadata = workload.root.get("metadata")
    if metadata is None or not metadata.get("resourceVersion"):
        return False
    spec, annotations = workload.root.get("spec"), metadata.get("annotations")
    if annotations and annotations.get(_APPLIED):
        alone = len(annotations.pairs) == 1
        return document.remove(metadata, "annotations") if alone else document.remove(annotations, _APPLIED)
    if workload.kind == "Job" and spec:
        template = spec.get("template", "metadata")
        if document.remove(spec, "selector"):
            return True
        for each in filter(None, (metadata, template)):
            labels = each.get("labels")
            if labels and any(document.remove(labels, label) for label in _OF_A_JOB):
                return True
    if document.remove(workload.root, "status"):
        return True
    return any(document.remove(metadata, field) for field in _OF_SERVER)  # the last one tells that there are others


def _is_own(root: Node) -> bool:
    return root.text("kind") == "ConfigMap" and root.text("metadata", "name").startswith(f"{NAME}-")


def _title(root: Node) -> str:
    name = root.text("metadata", "name")
    return f"{root.text('kind') or 'an object without a kind'} {name}".rstrip()
