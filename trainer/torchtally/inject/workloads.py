"""Where each kind of manifest keeps its pods, and which of their containers train."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torchtally.errors import Refused
from torchtally.inject.documents import Document
from torchtally.inject.nodes import Node

_GROUPS = {
    "PyTorchJob": "kubeflow.org",
    "TrainJob": "trainer.kubeflow.org",
    "Job": "batch",
    "JobSet": "jobset.x-k8s.io",
    "Pod": "",
}
KINDS = f"{', '.join(list(_GROUPS)[:-1])}, or Pod"
TRAINER = "node"  # the container of a TrainJob that trains
_USUAL = {"PyTorchJob": "pytorch", "JobSet": TRAINER}  # names of the container that trains
_HOOK = "helm.sh/hook"  # what `helm install` and `helm upgrade` do not apply


@dataclass(frozen=True, kw_only=True)
class Workload:
    """An object that has pods."""

    kind: str
    root: Node

    @property
    def name(self) -> str:
        metadata = self.root.get("metadata")
        return (metadata.text("name") or metadata.text("generateName")) if metadata else ""

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def namespace(self) -> str:
        return self.root.text("metadata", "namespace")

    @property
    def pods(self) -> list[Node]:
        """The specs of its pods, each place in the text once. Those of a TrainJob are in its runtime."""
        found = {id(pod): pod for pod in self._pods() if pod}
        return list(found.values())

    def _pods(self) -> Iterator[Node | None]:
        spec = self.root.get("spec")
        if spec is None:
            return
        if self.kind == "Pod":
            yield spec
        elif self.kind == "Job":
            yield spec.get("template", "spec")
        elif self.kind == "PyTorchJob":
            replicas = spec.get("pytorchReplicaSpecs")
            for _, replica in replicas.pairs if replicas else ():
                yield (replica.target or replica).get("template", "spec")
        elif self.kind == "JobSet":
            jobs = spec.get("replicatedJobs")
            for job in jobs.children if jobs else ():
                yield job.get("template", "spec", "template", "spec")

    def trains(self, wanted: Sequence[str]) -> list[tuple[Node, list[Node]]]:
        """Its pods, each with the containers that train: those of these names, or else the usual one or the only one.

        Raises Refused.
        """
        if not self.pods:
            raise Refused(f"{self.title} has no pod: its spec names no container; add one, or leave it out")
        found = [(pod, _named(pod, wanted or self._usual(pod))) for pod in self.pods]
        chosen = [(pod, containers) for pod, containers in found if containers]
        if not chosen:
            raise Refused(self.none(wanted or self._usual(self.pods[0])))
        return chosen

    def has(self, wanted: Sequence[str]) -> bool:
        """Whether it has a container of one of these names."""
        return any(_named(pod, wanted) for pod in self.pods) or (self.kind == "TrainJob" and TRAINER in wanted)

    def _usual(self, pod: Node) -> list[str]:
        names = [each.text("name") for each in containers_of(pod)]
        usual = _USUAL.get(self.kind)
        return [usual] if usual in names or (usual and len(names) != 1) else names if len(names) == 1 else []

    def none(self, wanted: Sequence[str]) -> str:
        """Why none of its containers has one of these names."""
        names = dict.fromkeys(each.text("name") for pod in self.pods for each in containers_of(pod))
        if names and not wanted:
            return f"{self.title} has containers {', '.join(names)}: name the one that trains by --container"
        has = f"only {', '.join(names)}: name the one that trains by --container" if names else "no container"
        return f"{self.title} has no container {' or '.join(wanted)}, {has}" if names else f"{self.title} has {has}"


def found(root: Node | None) -> Iterator[Workload]:
    """The workloads in a document: its own, or those of a List."""
    if root is None:
        return
    kind, version = root.text("kind"), root.text("apiVersion")
    items = root.get("items")
    if kind.endswith("List") and items:
        for each in items.children:
            yield from found(each)
    elif kind in _GROUPS and version.rpartition("/")[0] == _GROUPS[kind]:
        annotations = root.get("metadata", "annotations")
        if annotations is None or not annotations.text(_HOOK):
            yield Workload(kind=kind, root=root)


def edited(text: str, line: int, number: int, edit: Callable[[Document, Workload], str | None]) -> str:
    """A text with all edits of a workload, one after the other: each returns a new text, and None ends them.

    Args:
        text: That of a document.
        line: The number of lines above it.
        number: Which of its workloads.
        edit: The next edit.
    """
    while True:
        document = Document(text, line)
        new = edit(document, list(found(document.root))[number])
        if new is None:
            return text
        text = new


def chosen(workloads: Sequence[Workload], wanted: Sequence[str]) -> list[Workload]:
    """Those that train: the ones with a container of these names, or else no Job and no Pod beside another kind.

    Raises Refused.
    """
    if wanted:
        missing = [name for name in wanted if not any(each.has([name]) for each in workloads)]
        if missing and workloads:
            raise Refused(workloads[0].none(missing))
        return [each for each in workloads if each.has(wanted)]
    return [each for each in workloads if each.kind not in ("Job", "Pod")] or list(workloads)


def containers_of(pod: Node) -> list[Node]:
    containers = pod.get("containers")
    return containers.children if containers else []


def _named(pod: Node, names: Sequence[str]) -> list[Node]:
    return [each for each in containers_of(pod) if each.text("name") in names]


def item(mapping: Node, key: str, name: str, value: str) -> Node | None:
    """The last item of a list that has this value under this name, which is the one that counts."""
    there = mapping.get(key)
    found = [each for each in there.children if each.text(name) == value] if there else []
    return found[-1] if found else None
