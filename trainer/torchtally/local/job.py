"""A PyTorchJob under the operator's defaults, or a TrainJob, and the pods that are made of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from kubernetes.utils.quantity import parse_quantity

from torchtally.local.webhook import CONTAINER, REPLICA_TYPES

PORT_NAME, DEFAULT_PORT = "pytorchjob-port", 23456
LABELS = "training.kubeflow.org"

# "500m", "2Gi" or a plain number.
quantity: Callable[[Any], Decimal] = parse_quantity

RestartPolicy = Literal["Always", "ExitCode", "Never", "OnFailure"]
CleanPodPolicy = Literal["All", "None", "Running"]


@dataclass(frozen=True, kw_only=True)
class Replica:
    """The pods of one replica type: Master or Worker, or the nodes of a TrainJob."""

    kind: str
    count: int
    restart_policy: RestartPolicy
    template: Mapping[str, Any]
    container_name: str = CONTAINER

    @property
    def container(self) -> Mapping[str, Any]:
        """The container that trains, which the operator asks for by its name."""
        containers = self.template["spec"]["containers"]
        return next(container for container in containers if container["name"] == self.container_name)

    @property
    def port(self) -> int:
        ports = self.container.get("ports", [])
        return next((port["containerPort"] for port in ports if port.get("name") == PORT_NAME), DEFAULT_PORT)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod: a process here, or a container."""

    name: str
    index: int
    replica: Replica
    labels: Mapping[str, str]

    @property
    def annotations(self) -> Mapping[str, str]:
        annotations: Mapping[str, str] = self.replica.template.get("metadata", {}).get("annotations", {})
        return annotations

    @property
    def spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.replica.template["spec"]
        return spec

    @property
    def container(self) -> Mapping[str, Any]:
        return self.replica.container

    @property
    def limits(self) -> Mapping[str, Any]:
        limits: Mapping[str, Any] = self.container.get("resources", {}).get("limits", {})
        return limits

    def limit(self, resource: str) -> Decimal:
        """The limit of a resource; 0 if there is none."""
        return quantity(self.limits.get(resource, 0))

    @property
    def grace(self) -> int:
        """Seconds from SIGTERM to SIGKILL."""
        seconds: int = self.spec.get("terminationGracePeriodSeconds", 30)
        return seconds


@dataclass(frozen=True, kw_only=True)
class LocalJob:
    """A job to run on this machine."""

    name: str
    namespace: str
    replicas: Mapping[str, Replica]  # Master first
    nproc_per_node: str | None
    elastic: Mapping[str, Any] | None  # the elasticPolicy, with minReplicas and maxReplicas filled in
    run_policy: Mapping[str, Any]
    metadata: Mapping[str, Any]
    config: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)  # ConfigMaps, Secrets of the file
    kind: Literal["PyTorchJob", "TrainJob"] = "PyTorchJob"

    @classmethod
    def from_manifest(
        cls, manifest: Mapping[str, Any], config: Mapping[tuple[str, str], Mapping[str, str]] | None = None
    ) -> "LocalJob":
        """Apply the operator's defaults to a PyTorchJob that passed its validation."""
        spec, metadata = manifest["spec"], manifest["metadata"]
        replicas = {
            kind: Replica(
                kind=kind,
                count=written.get("replicas", 1),
                restart_policy=written.get("restartPolicy") or "OnFailure",
                template=written["template"],
            )
            for kind in REPLICA_TYPES
            if (written := spec["pytorchReplicaSpecs"].get(kind)) is not None
        }
        elastic = spec.get("elasticPolicy")
        nproc_per_node = spec.get("nprocPerNode")
        if nproc_per_node is None and (elastic is None or "nProcPerNode" not in elastic):
            nproc_per_node = "auto"
        if elastic is not None:
            low = elastic.get("minReplicas", elastic.get("maxReplicas", replicas["Worker"].count))
            elastic = {**elastic, "minReplicas": low, "maxReplicas": elastic.get("maxReplicas", low)}
        return cls(
            name=metadata["name"],
            namespace=metadata.get("namespace", "default"),
            replicas=replicas,
            nproc_per_node=nproc_per_node,
            elastic=elastic,
            run_policy=spec.get("runPolicy", {}),
            metadata=metadata,
            config=config or {},
        )

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"

    def files(self, volume: Mapping[str, Any]) -> Mapping[str, str] | None:
        """Those of a volume that is a whole ConfigMap of the file, None for any other."""
        source = volume.get("configMap", {})
        return None if "items" in source else self.config.get(("ConfigMap", source.get("name", "")))

    @property
    def clean_pod_policy(self) -> CleanPodPolicy:
        policy: CleanPodPolicy = self.run_policy.get("cleanPodPolicy", "None")
        return policy

    @property
    def backoff_limit(self) -> int | None:
        return self.run_policy.get("backoffLimit")

    @property
    def deadline(self) -> int | None:
        """Seconds that the job may run."""
        return self.run_policy.get("activeDeadlineSeconds")

    @property
    def suspended(self) -> bool:
        return bool(self.run_policy.get("suspend"))

    @property
    def pods(self) -> list[Pod]:
        """All pods in the order of their ranks."""
        return [
            Pod(
                name=f"{self.name}-{kind.lower()}-{'0-' * (self.kind == 'TrainJob')}{index}",
                index=index,
                replica=replica,
                labels=replica.template.get("metadata", {}).get("labels", {}) | self._labels(kind, index),
            )
            for kind, replica in self.replicas.items()
            for index in range(replica.count)
        ]

    def _labels(self, kind: str, index: int) -> dict[str, str]:
        if self.kind == "TrainJob":
            return {"jobset.sigs.k8s.io/jobset-name": self.name, "batch.kubernetes.io/job-completion-index": str(index)}
        leader = kind == "Master" or ("Master" not in self.replicas and index == 0)
        return {
            f"{LABELS}/job-name": self.name,
            f"{LABELS}/operator-name": "pytorchjob-controller",
            f"{LABELS}/replica-type": kind.lower(),
            f"{LABELS}/replica-index": str(index),
        } | ({f"{LABELS}/job-role": "master"} if leader else {})
