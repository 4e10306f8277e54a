"""The controllers that jobs need, installed as their documentation says, from their releases.

Where GitHub cannot be reached, the training operator comes through the Go module proxy, and the manifests of the others
from the folder E2E_MANIFESTS. An image that this machine has is loaded into the nodes, which then need not pull it.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import LIMIT, ROOT, run, wait_for

PATIENCE = f"--timeout={LIMIT - 60}s"
OPERATOR = "v1.9.4"
OPERATOR_MANIFESTS = f"https://github.com/kubeflow/training-operator//manifests/overlays/standalone?ref={OPERATOR}"


@dataclass(frozen=True, kw_only=True)
class Release:
    name: str
    url: str = ""
    kustomize: bool = False
    chart: tuple[str, ...] | None = None  # the options of a Helm chart
    namespace: str = ""  # of its deployments; empty: it has none
    anywhere: bool = False  # its manifests name no namespace, so they go into this one
    images: tuple[str, ...] = ()  # that its manifests name otherwise than as the image of a container


# Trainer's own manifests have it, too; a folder has it apart.
JOBSET = Release(name="jobset", namespace="jobset-system")
TRAINER = Release(
    name="trainer",
    url="https://github.com/kubeflow/trainer//manifests/overlays/manager?ref=v2.3.0",
    kustomize=True,
    namespace="kubeflow-system",
)
RUNTIMES = Release(
    name="trainer-runtimes",
    url="https://github.com/kubeflow/trainer//manifests/overlays/runtimes?ref=v2.3.0",
    kustomize=True,
)
KUEUE = Release(
    name="kueue",
    url="https://github.com/kubernetes-sigs/kueue/releases/download/v0.15.1/manifests.yaml",
    namespace="kueue-system",
)
VOLCANO = Release(
    name="volcano",
    url="https://raw.githubusercontent.com/volcano-sh/volcano/v1.14.1/installer/volcano-development.yaml",
    namespace="volcano-system",
)
PROMETHEUS_OPERATOR = Release(
    name="prometheus-operator",
    url="https://github.com/prometheus-operator/prometheus-operator/releases/download/v0.88.0/bundle.yaml",
    namespace="default",
    images=("quay.io/prometheus-operator/prometheus-config-reloader:v0.88.0",),
)
COSCHEDULING = Release(
    name="scheduler-plugins",
    url="https://github.com/kubernetes-sigs/scheduler-plugins/releases/download/v0.34.7/scheduler-plugins-0.34.7.tgz",
    chart=("--set=scheduler.command={/bin/kube-scheduler,--pod-max-in-unschedulable-pods-duration=10s}",),
    namespace="scheduler-plugins",
)
ARGO_CD = Release(
    name="argo-cd",
    url="https://raw.githubusercontent.com/argoproj/argo-cd/v3.3.0/manifests/core-install.yaml",
    namespace="argocd",
    anywhere=True,
)


def apply_operator() -> None:
    run("kubectl", "apply", "--server-side", "--kustomize", _operator_manifests())
    wait_for_operator()


def wait_for_operator() -> None:
    run("kubectl", "--namespace=kubeflow", "rollout", "status", "deployment/training-operator", PATIENCE)
    pods = ("get", "pods", "--selector=control-plane=kubeflow-training-operator", "--output=name")
    # One that is on its way out answers for a while.
    wait_for("a single operator", lambda: len(run("kubectl", "--namespace=kubeflow", *pods).stdout.split()) == 1)
    # Its webhook answers some time after it is ready.
    job = ("kubectl", "apply", "--dry-run=server", "--filename", str(ROOT / "examples/fashion-mnist.yaml"))
    wait_for("the operator's webhook", lambda: run(*job, check=False).returncode == 0)


@contextmanager
def changed_operator(commands: str, folder: Path) -> Iterator[None]:
    """The training operator as after these commands of the documentation, and then as it was."""
    revision = r"--output=jsonpath={.metadata.annotations.deployment\.kubernetes\.io/revision}"
    before = run("kubectl", "--namespace=kubeflow", "get", "deployment/training-operator", revision).stdout
    try:
        run("bash", "-euc", f"cd {folder}\n{commands}")
        wait_for_operator()
        yield
    finally:  # which changes nothing where the commands did not
        undo = ("rollout", "undo", "deployment/training-operator", f"--to-revision={before}")
        run("kubectl", "--namespace=kubeflow", *undo)
        wait_for_operator()


def _operator_manifests() -> str:
    rendered = run("kubectl", "kustomize", OPERATOR_MANIFESTS, check=False)
    if rendered.returncode == 0 or not shutil.which("go"):
        return OPERATOR_MANIFESTS
    run("go", "mod", "download", module := f"github.com/kubeflow/training-operator@{OPERATOR}")
    folder = run("go", "env", "GOMODCACHE").stdout.strip()
    return str(Path(folder, module, "manifests/overlays/standalone"))


def apply(*releases: Release) -> None:
    """Apply them, and wait until what they run is ready."""
    for each in releases:
        manifests = _manifests(each)
        load(*_images(each))
        into = []
        if each.anywhere:
            into = ["--namespace", each.namespace]
            run("kubectl", "create", "namespace", each.namespace, check=False)  # unless a kept cluster has it
        run("kubectl", "apply", "--server-side", *into, "--filename=-", text=manifests)
    for each in releases:
        if each.namespace:
            run("kubectl", "--namespace", each.namespace, "rollout", "status", "deployment", PATIENCE)


def at_hand(release: Release) -> bool:
    """Whether its manifests can be had: a folder need not have them all."""
    folder = os.environ.get("E2E_MANIFESTS")
    return not folder or Path(folder, f"{release.name}.yaml").exists()


def delete(release: Release) -> None:
    """With the webhooks that it has registered itself, which nothing answers any more."""
    run("kubectl", "delete", "--ignore-not-found", "--filename=-", text=_manifests(release))
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        for each in json.loads(run("kubectl", "get", kind, "--output=json").stdout)["items"]:
            services = [webhook["clientConfig"].get("service", {}) for webhook in each.get("webhooks", [])]
            if release.namespace in {service.get("namespace") for service in services}:
                run("kubectl", "delete", kind, each["metadata"]["name"])


def load(*images: str) -> None:
    """Into the nodes, those that this machine has."""
    cluster = run("kubectl", "config", "current-context").stdout.strip().removeprefix("kind-")
    for image in sorted(set(images)):
        if run("docker", "image", "inspect", image, check=False).returncode == 0:
            run("kind", "load", "docker-image", f"--name={cluster}", image)


def missing(release: Release) -> str:
    """What it lacks where the internet cannot be reached; empty if it lacks nothing."""
    if not at_hand(release):
        return f"E2E_MANIFESTS has no {release.name}.yaml"
    return no_image(*_images(release)) if os.environ.get("E2E_MANIFESTS") else ""


def no_image(*images: str) -> str:
    """The same of images alone."""
    if os.environ.get("E2E_MANIFESTS"):
        for image in images:
            if run("docker", "image", "inspect", image, check=False).returncode:
                return f"this machine has no image {image}"
    return ""


def _images(release: Release) -> list[str]:
    return [*release.images, *re.findall(r"^ *image: (\S+)$", _manifests(release), re.MULTILINE)]


def apply_trainer() -> None:
    apply(*([JOBSET] if os.environ.get("E2E_MANIFESTS") else []), TRAINER)


def accepts(release: Release) -> bool:
    """Whether the cluster takes it, which needs others' webhooks."""
    applied = run("kubectl", "apply", "--server-side", "--filename=-", text=_manifests(release), check=False)
    return applied.returncode == 0


def _manifests(release: Release) -> str:
    if folder := os.environ.get("E2E_MANIFESTS"):
        text = Path(folder, f"{release.name}.yaml").read_text()
    elif release.kustomize:
        text = run("kubectl", "kustomize", release.url).stdout
    elif release.chart is not None:
        options = ("--include-crds", "--namespace", release.namespace, *release.chart)
        text = f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {release.namespace}}}\n---\n"
        text += run("helm", "template", release.name, release.url, *options).stdout
    else:
        text = run("kubectl", "create", "--dry-run=client", "--output=yaml", "--filename", release.url).stdout
    return text.replace("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")  # which a loaded image has
