"""The cluster that tools/e2e.sh names, the operator on it, and a namespace for each test."""

import os
import re
import subprocess
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import argo
import controllers
import faults
import nodes
import own
import policy
import prometheus
import pytest
from cluster import CHART, LABEL, LIMIT, ROOT, Namespace, built, run, wait_for

SAVED = ROOT / "build/e2e"
ORDER = ("kueue", "prometheus_operator", "operator")  # fixtures, whose tests come last, and before them, and so on


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for a cluster without an operator comes first, and Kueue, whose webhooks all pods go through, last."""
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3 * LIMIT))  # each may wait for several things
    items.sort(key=lambda item: [name in getattr(item, "fixturenames", ()) for name in ORDER])


@pytest.fixture(scope="session")
def cluster() -> None:
    if not os.environ.get("E2E_IMAGE"):
        pytest.skip("no cluster: `make e2e` makes one")


@pytest.fixture(scope="session")
def tasks_image(cluster: None) -> str:
    """The image with what only some tasks need."""
    if not (name := os.environ.get("E2E_TASKS_IMAGE")):
        pytest.skip("only with E2E_TASKS=1, and the image that `make image EXTRAS=keras,mlflow,spark` builds")
    return name


@pytest.fixture(scope="session")
def own_cluster(cluster: None) -> None:
    if os.environ.get("E2E_CONTEXT"):
        pytest.skip("only on a cluster of its own: it changes the nodes, or needs one without the operator")


@pytest.fixture(scope="session")
def operator(cluster: None) -> None:
    """The training operator."""
    has = run("kubectl", "get", "crd", "pytorchjobs.kubeflow.org", check=False).returncode == 0
    if os.environ.get("E2E_CONTEXT"):
        assert has, f"the cluster of E2E_CONTEXT has no training operator: apply {controllers.OPERATOR_MANIFESTS} to it"
        return
    controllers.apply_operator()


@pytest.fixture
def restricted_operator(own_cluster: None, operator: None, tmp_path: Path) -> Iterator[None]:
    """The training operator with the init container that the chart's README gives to it."""
    commands = (CHART / "README.md").read_text().partition("## Restricted namespaces")[2].split("```")[1]
    try:
        with controllers.changed_operator(commands, tmp_path):
            yield
    finally:
        run("kubectl", "--namespace=kubeflow", "delete", "configmap", "pytorch-init-container", "--ignore-not-found")


@pytest.fixture(scope="session")
def trainer(own_cluster: None) -> None:
    """Kubeflow Trainer and its runtimes."""
    controllers.apply_trainer()
    # Its webhook is asked about runtimes, and answers some time after it is ready.
    wait_for("the webhook of Kubeflow Trainer", lambda: controllers.accepts(controllers.RUNTIMES))


@pytest.fixture(scope="session")
def kueue(operator: None, trainer: None) -> None:
    controllers.apply(controllers.KUEUE)
    # Its webhooks are asked about every deployment, too, and answer, and are trusted, some time after it is ready.
    deployment = ("--namespace=kubeflow", "deployment/training-operator")
    change = ("kubectl", "annotate", *deployment, "asked=yes", "--dry-run=server")
    wait_for("Kueue's webhooks", lambda: run(*change, check=False).returncode == 0)


@pytest.fixture(scope="session")
def prometheus_image(own_cluster: None) -> str:
    if why := controllers.no_image(prometheus.IMAGE):
        pytest.skip(why)
    controllers.load(prometheus.IMAGE)
    return prometheus.IMAGE


@pytest.fixture(scope="session")
def without_pod_monitors(own_cluster: None) -> None:
    if run("kubectl", "get", "crd", "podmonitors.monitoring.coreos.com", check=False).returncode == 0:
        pytest.skip("the cluster has PodMonitors, with which the chart sets no annotations")


@pytest.fixture(scope="session")
def prometheus_operator(prometheus_image: str) -> None:
    if why := controllers.missing(controllers.PROMETHEUS_OPERATOR):
        pytest.skip(why)
    controllers.apply(controllers.PROMETHEUS_OPERATOR)


@pytest.fixture(scope="session")
def argo_cd(own_cluster: None, operator: None) -> None:
    if why := controllers.missing(controllers.ARGO_CD):
        pytest.skip(why)
    controllers.apply(controllers.ARGO_CD)
    # Its API server makes the key. This installation has none, and then 3.3 does not sync: argoproj/argo-cd#12903.
    key = '{"stringData": {"server.secretkey": "of-a-test"}}'
    argo.ARGO.kubectl("patch", "secret", "argocd-secret", "--type=merge", f"--patch={key}")
    argo.ARGO.kubectl("rollout", "status", "statefulset", controllers.PATIENCE)


@pytest.fixture(scope="session")
def operator_apart(own_cluster: None, operator: None) -> None:
    nodes.keep_the_operator_apart()


@pytest.fixture(scope="session")
def namespaces(cluster: None) -> Iterator[None]:
    """Namespaces take seconds to go: that they are gone is awaited once, at the end."""
    yield
    names = run("kubectl", "get", "namespaces", f"--selector={LABEL}", "--output=name").stdout.split()
    for name in names:
        run("kubectl", "wait", "--for=delete", name, f"--timeout={LIMIT}s")


@pytest.fixture
def namespace(namespaces: None, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    if len(name) > 50:  # and another, whose name begins likewise, may still be on its way out
        name = f"{name[:43].rstrip('-')}-{zlib.crc32(name.encode()):08x}"
    namespace = Namespace(f"torchtally-{name}")
    namespace.create()
    yield namespace
    namespace.delete()


@pytest.fixture(scope="session")
def image_with_libraries(own_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image under test with the libraries of all trainings, as a user's own image has them."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "overrides.txt").write_text("".join(f"{each}; sys_platform == 'never'\n" for each in own.IN_THE_IMAGE))
    ask = ("-c", "import platform; print(platform.python_version())")
    python = run("docker", "run", "--rm", "--entrypoint=python", os.environ["E2E_IMAGE"], *ask).stdout.strip()
    install = ("uv", "--directory", str(ROOT / "trainer"), "pip", "install", "--quiet", "--python-version", python)
    libraries = [f"{each}=={version(each)}" for each in sorted(own.LIBRARIES)]
    target = ("--target", str(folder / "libraries"), "--overrides", str(folder / "overrides.txt"))
    run(*install, *target, *libraries)
    with built("libraries", "FROM {base}\nCOPY libraries /libraries\n", folder) as name:
        yield name


@pytest.fixture(scope="session")
def undisturbed(operator: None, namespaces: None) -> str:
    """The weights of the training that faults.py disturbs."""
    namespace = Namespace("torchtally-undisturbed")
    namespace.create()
    try:
        faults.train(namespace)
        return faults.weights(namespace)
    finally:
        namespace.delete()


@pytest.fixture
def policies(operator: None, namespace: Namespace) -> Iterator[None]:
    """The chart's admission policies, for this namespace alone."""
    names = policy.apply(namespace)
    yield
    run("kubectl", "delete", *names)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    namespace = getattr(item, "funcargs", {}).get("namespace")
    if report.failed and call.when == "call" and namespace:
        folder = SAVED / namespace.name.removeprefix("torchtally-")
        try:
            namespace.save(folder)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            folder = f"nothing: {error}"
        report.longrepr.addsection("saved: events, pods, objects and logs", str(folder))
    return report
