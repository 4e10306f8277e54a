"""Checks of a cluster, by requests that change nothing: reading, reviews of rights, and server dry runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.utils.quantity import parse_quantity

from torchtally.checks import manifests
from torchtally.checks.finding import Finding, bad, good, warning
from torchtally.cluster import logs
from torchtally.cluster.job_kinds import TIMEOUT, ClusterError, ClusterJob, PyTorchJob, TrainJob, message

# What `helm install`, and what reads its job, ask for.
_RIGHTS = (
    ("create", "", "configmaps"),
    ("create", "", "persistentvolumeclaims"),
    ("create", "", "serviceaccounts"),
    ("create", "rbac.authorization.k8s.io", "roles"),
    ("create", "networking.k8s.io", "networkpolicies"),
    ("get", "", "pods"),
    ("get", "", "pods/log"),
)
_quantity: Callable[[str], Decimal] = parse_quantity
# Parts of the names of provisioners.
_SHARED = ("nfs", "efs", "filestore", "file.csi.azure", "cephfs", "lustre", "fsx", "longhorn", "gcsfuse", "juicefs")
_SINGLE = ("ebs", "disk.csi", "pd.csi", "rbd", "local-path", "hostpath", "no-provisioner", "cinder")


def findings(namespace: str | None, context: str | None) -> Iterator[Finding]:
    """Check a namespace, by default that of the context."""
    try:
        settings, own = logs.connect(context)
    except ClusterError as error:
        yield bad("cluster", error.args[0])
        return
    with client.ApiClient(settings) as api:
        try:
            yield from _Cluster(api, namespace or own).findings()
        except urllib3.exceptions.HTTPError as error:
            yield bad("cluster", f"cannot reach the cluster at {settings.host}: {error}")


class _Cluster:
    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._api, self._namespace, self._core = api, namespace, client.CoreV1Api(api)
        self._options: dict[str, Any] = {"_request_timeout": TIMEOUT}

    def findings(self) -> Iterator[Finding]:
        version: Any = client.VersionApi(self._api).get_code(**self._options)
        try:
            self._core.list_namespaced_pod(self._namespace, limit=1, **self._options)
            yield good("cluster", f"Kubernetes {version.git_version}, namespace {self._namespace}")
        except ApiException as error:
            yield bad("cluster", f"Kubernetes {version.git_version}: {message(error)}")
            return
        served: list[type[ClusterJob]] = [kind for kind in (PyTorchJob, TrainJob) if self._serves(kind)]
        yield from self._operators(served)
        yield from self._rights(served)
        yield self._storage()
        yield self._quota()
        yield from self._admission()

    def _serves(self, kind: type[ClusterJob]) -> bool:
        try:
            found: Any = client.CustomObjectsApi(self._api).get_api_resources(kind.group, kind.version, **self._options)
        except ApiException:
            return False
        return any(each.name == kind.plural for each in found.resources)

    def _operators(self, served: list[type[ClusterJob]]) -> Iterator[Finding]:
        """Whether a job of each kind would be taken, which its operator's webhook decides."""
        if not served:
            yield bad("operator", "the cluster serves neither PyTorchJob nor TrainJob: install the training operator")
        for kind in served:
            refusal = self._dry_run(kind, manifests.job(kind))
            if refusal is None:
                yield good("operator", f"{kind.controller} takes a {kind.kind} (server dry run)")
            elif "runtime" in refusal.lower():  # of a TrainJob: the chart makes one of its own
                yield good("operator", f"{kind.controller} answers for a {kind.kind} (server dry run)")
            else:
                yield bad("operator", f"{kind.controller} does not take a {kind.kind}: {refusal}")

    def _dry_run(self, kind: type[ClusterJob], body: dict[str, Any]) -> str | None:
        """Why a job is refused."""
        try:
            client.CustomObjectsApi(self._api).create_namespaced_custom_object(
                kind.group, kind.version, self._namespace, kind.plural, body, dry_run="All", **self._options
            )
        except ApiException as error:
            return message(error)
        return None

    def _rights(self, served: list[type[ClusterJob]]) -> Iterator[Finding]:
        wanted = [*_RIGHTS, *(("create", kind.group, kind.plural) for kind in served)]
        lacking = [f"{verb} {resource}" for verb, group, resource in wanted if not self._may(verb, group, resource)]
        if lacking:
            text = f"not allowed in namespace {self._namespace}: {', '.join(lacking)}"
            yield (warning if lacking == ["create roles"] else bad)("rights", text)
        else:
            yield good("rights", f"all that the chart creates, and the logs, in namespace {self._namespace}")

    def _may(self, verb: str, group: str, resource: str) -> bool:
        resource, _, sub = resource.partition("/")
        asked = client.V1ResourceAttributes(
            namespace=self._namespace, verb=verb, group=group, resource=resource, subresource=sub or None
        )
        spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=asked)
        body = client.V1SelfSubjectAccessReview(spec=spec)
        answer: Any = client.AuthorizationV1Api(self._api).create_self_subject_access_review(body, **self._options)
        return bool(answer.status.allowed)

    def _storage(self) -> Finding:
        try:
            classes: Any = client.StorageV1Api(self._api).list_storage_class(**self._options)
        except ApiException as error:
            return warning("storage", f"storage classes are not known: {message(error)}")
        told, default = [], None
        for each in classes.items:
            annotations = each.metadata.annotations or {}
            is_default = annotations.get("storageclass.kubernetes.io/is-default-class") == "true"
            default = each.metadata.name if is_default else default
            told.append(f"{each.metadata.name} ({_modes(each.provisioner)}{', the default' * is_default})")
        if not told:
            return bad("storage", "no storage class: set model.existingClaim, or model.enabled=false")
        text = f"storage classes: {', '.join(told)}"
        return good("storage", text) if default else warning("storage", f"{text}; none is the default")

    def _quota(self) -> Finding:
        try:
            quotas: Any = self._core.list_namespaced_resource_quota(self._namespace, **self._options)
        except ApiException as error:
            return warning("quota", f"quotas are not known: {message(error)}")
        return quota(self._namespace, [(each.status.hard or {}, each.status.used or {}) for each in quotas.items])

    def _admission(self) -> Iterator[Finding]:
        """Whether pods like those of the chart, and the operator's own init container, are admitted."""
        if refusal := self._refusal(manifests.pod(plain_init=False)):
            if "cannot create resource" in refusal:  # which the operator may
                yield warning("admission", f"whether pods of the chart are admitted is not known: {refusal}")
            else:
                yield bad("admission", f"pods of the chart are refused: {refusal}")
            return
        yield good("admission", f"namespace {self._namespace} admits restricted pods, as the chart's are (dry run)")
        if refusal := self._refusal(manifests.pod(plain_init=True)):
            yield warning("init-container", f"the training operator's init container is refused: {refusal}")

    def _refusal(self, body: dict[str, Any]) -> str | None:
        try:
            pod: Any = body  # the client takes a model or what it is as JSON
            self._core.create_namespaced_pod(self._namespace, pod, dry_run="All", **self._options)
        except ApiException as error:
            return message(error)
        return None


def quota(namespace: str, quotas: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> Finding:
    """What is used of each limit: bad if nothing is left of one."""
    limits = [(name, used.get(name, "0"), most) for hard, used in quotas for name, most in sorted(hard.items())]
    if not limits:
        return good("quota", f"no ResourceQuota in namespace {namespace}")
    full = [limit for limit in limits if _quantity(limit[1]) >= _quantity(limit[2])]
    text = ", ".join(f"{name} {used} of {most}" for name, used, most in full or limits)
    return bad("quota", f"used up in namespace {namespace}: {text}") if full else good("quota", f"used: {text}")


def _modes(provisioner: str) -> str:
    """The access modes of a volume, as far as the name of its provisioner tells: a class does not state them."""
    if any(part in provisioner for part in _SHARED):
        return "ReadWriteMany"
    return "ReadWriteOnce alone" if any(part in provisioner for part in _SINGLE) else f"of {provisioner}"
