"""The cluster that scripts/e2e.sh names, the operator on it, and a namespace for each test."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import LABEL, ROOT, Namespace, run

OPERATOR = "v1.9.4"
OPERATOR_MANIFESTS = f"https://github.com/kubeflow/training-operator//manifests/overlays/standalone?ref={OPERATOR}"
SAVED = ROOT / "build/e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for a cluster without the operator comes first."""
    items.sort(key=lambda item: "operator" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def cluster() -> None:
    if not os.environ.get("E2E_IMAGE"):
        pytest.skip("no cluster: `make e2e` makes one")


@pytest.fixture(scope="session")
def own_cluster(cluster: None) -> None:
    if os.environ.get("E2E_CONTEXT"):
        pytest.skip("only on a cluster of its own: it changes the nodes, or needs one without the operator")


@pytest.fixture(scope="session")
def operator(cluster: None) -> None:
    """The training operator, installed as its documentation says."""
    has = run("kubectl", "get", "crd", "pytorchjobs.kubeflow.org", check=False).returncode == 0
    if os.environ.get("E2E_CONTEXT"):
        assert has, f"the cluster of E2E_CONTEXT has no training operator: apply {OPERATOR_MANIFESTS} to it"
        return
    run("kubectl", "apply", "--server-side", "--kustomize", _operator_manifests())
    run("kubectl", "--namespace=kubeflow", "rollout", "status", "deployment/training-operator", "--timeout=300s")


def _operator_manifests() -> str:
    rendered = run("kubectl", "kustomize", OPERATOR_MANIFESTS, check=False)
    if rendered.returncode == 0 or not shutil.which("go"):
        return OPERATOR_MANIFESTS
    # Where GitHub cannot be reached, the Go module proxy has the same release.
    run("go", "mod", "download", module := f"github.com/kubeflow/training-operator@{OPERATOR}")
    folder = run("go", "env", "GOMODCACHE").stdout.strip()
    return str(Path(folder, module, "manifests/overlays/standalone"))


@pytest.fixture(scope="session")
def namespaces(cluster: None) -> Iterator[None]:
    """Namespaces take seconds to go: that they are gone is awaited once, at the end."""
    yield
    names = run("kubectl", "get", "namespaces", f"--selector={LABEL}", "--output=name").stdout.split()
    for name in names:
        run("kubectl", "wait", "--for=delete", name, "--timeout=180s")


@pytest.fixture
def namespace(namespaces: None, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:50].rstrip("-")
    namespace = Namespace(f"torchtally-{name}")
    namespace.create()
    yield namespace
    namespace.delete()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    namespace = getattr(item, "funcargs", {}).get("namespace")
    if report.failed and call.when == "call" and namespace:
        folder = SAVED / namespace.name.removeprefix("torchtally-")
        try:
            namespace.save(folder)
        except (OSError, subprocess.SubprocessError) as error:
            folder = f"nothing: {error}"
        report.longrepr.addsection("saved: events, pods, objects and logs", str(folder))
    return report
