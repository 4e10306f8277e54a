"""Jobs in an image that has PyTorch and nothing of torchtally: what observe.py adds to their manifests tells."""

import json
from collections.abc import Iterator

import faults
import nodes
import pytest
from cluster import ROOT, Namespace, Object, built, run, script, wait_for
from test_observed import FAST, FEW, MAIN, PROGRAM, data, job, judged

__all__ = ["data"]  # a fixture

CLEAN = """
FROM {base}
USER 0
RUN cd "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && rm -r *torchtally* \\
    && if python -c 'import torchtally'; then exit 1; fi
USER 1000:0
ENV TORCHTALLY_OBSERVE=
WORKDIR /app
ENTRYPOINT []
COPY main.py .
"""
# Without a sampler, with a seed for each rank, and right.
MISTAKES: dict[str, tuple[int, str, str]] = {
    "right": (0, "✓ each sample handed out exactly once", "observed"),
    "no-sampler": (1, "each rank is handed all 10000 samples in the same order", "✗ faulty"),
    "seed": (1, "the samplers of ranks 0 and 1 have seeds 0 and 1: give all ranks the same seed", "✗ faulty"),
}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
POD = {"name": "train", "securityContext": RESTRICTED}
ALONE = "from torch.utils.data import DataLoader\nprint(len([*DataLoader(range(9), 3)]))\n"


@pytest.fixture(scope="module")
def image(own_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """PyTorch and a program."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "main.py").write_bytes(PROGRAM.read_bytes())
    with built("foreign", CLEAN, folder) as name:
        yield name


def observe(*arguments: str, text: str | None = None) -> str:
    return script("observe.py", *arguments, text=text).stdout


def listed(namespace: Namespace) -> str:
    """With one space between the columns."""
    return " ".join(script("torchtally_jobs.py", "list", "-n", namespace.name).stdout.split())


def apply_injected(namespace: Namespace, manifest: Object) -> None:
    text = observe("inject", "-f", "-", text=json.dumps(manifest))
    namespace.kubectl("apply", "--filename=-", text=text)


def test_jobs_of_an_image_that_has_nothing_of_torchtally(
    operator: None, image: str, data: None, namespace: Namespace
) -> None:
    folder = f"{nodes.SHARED}/{FEW}"
    for name in MISTAKES:
        command = [*MAIN, *FAST, *(["--mistake", name] if name != "right" else [])]
        apply_injected(namespace, job(image, folder, (1, command), (1, command), name=name))
    plain = [*MAIN, *FAST]
    namespace.apply(job(image, folder, (1, plain), (1, plain), name="plain"))
    for name in (*MISTAKES, "plain"):
        namespace.wait_for_job(name, "Succeeded")
    namespace.wait_for_pods_to_end()

    for name, (status, sentence, _) in MISTAKES.items():
        found, said = judged("--job", name, "-n", namespace.name)
        assert found == status and sentence in said, said
        codes = {
            pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
            for pod in namespace.list("pod").values()
        }
        assert codes == {0}
    assert judged("--job", "plain", "-n", namespace.name)[0] == 3
    for pod in ("master-0", "worker-0"):  # what the program itself prints is the same
        own = [
            line for line in namespace.log(f"right-{pod}").splitlines() if not line.startswith("TORCHTALLY-OBSERVED {")
        ]
        assert own == namespace.log(f"plain-{pod}").splitlines()
        assert len(own) < len(namespace.log(f"right-{pod}").splitlines())

    said = listed(namespace)
    for name, (_, _, word) in MISTAKES.items():
        assert f"{name} succeeded 0 {word}" in said, said
    jobs = json.loads(script("torchtally_jobs.py", "list", "--json", "-n", namespace.name).stdout)["jobs"]
    standings = {"no-sampler": "faulty", "plain": "incomplete", "right": "observed", "seed": "faulty"}
    assert {each["job"]: each["standing"] for each in jobs} == standings
    status = script("torchtally_jobs.py", "status", "seed", "-n", namespace.name, check=False).stdout
    assert "give all ranks the same seed" in " ".join(status.split())

    namespace.kubectl("delete", "pod", "right-worker-0")
    said = listed(namespace)
    assert "✗ incomplete (no lines of 1 pod)" in said, said

    # A job that exists is replaced, with and without the observer.
    text = namespace.kubectl("get", "pytorchjob", "seed", "--output=yaml")
    without = observe("inject", "--remove", "-f", "-", text=text)
    assert "observer" not in without and "status:" not in without
    namespace.kubectl("replace", "--force", "--filename=-", text=without)
    namespace.wait_for_job("seed", "Succeeded")
    assert "TORCHTALLY" not in namespace.log("seed-master-0")
    text = namespace.kubectl("get", "pytorchjob", "seed", "--output=yaml")
    namespace.kubectl("replace", "--force", "--filename=-", text=observe("inject", "-f", "-", text=text))
    namespace.wait_for_job("seed", "Succeeded")
    assert "TORCHTALLY-OBSERVED {" in namespace.log("seed-master-0")


def test_a_restricted_pod_has_room_for_it(operator: None, image: str, namespace: Namespace) -> None:
    namespace.restrict()
    pod = {"restartPolicy": "Never", "containers": [{**POD, "image": image, "command": ["python", "-c", ALONE]}]}
    batch = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "batch"},
        "spec": {"template": {"spec": pod}},
    }
    apply_injected(namespace, batch)
    for name, command in {"plain": ["python", "-c", ALONE], "apart": ["python", "-I", "-c", ALONE]}.items():
        pod = {"restartPolicy": "Never", "containers": [{**POD, "image": image, "command": command}]}
        apply_injected(namespace, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod})
    namespace.wait_for_pods_to_end()
    namespace.wait_for_job("batch", "Complete", kind="job")
    status, said = judged("--job", "batch", "-n", namespace.name)
    assert status == 0 and "observed: 1 rank, 1 pass" in said, said
    assert "batch complete 0 observed" in listed(namespace)
    said = namespace.log("plain", container="train")
    assert "3\n" in said and said.count("TORCHTALLY-OBSERVED {") == 1
    assert namespace.log("apart", container="train") == "3\n"


def test_a_job_whose_python_ignores_it_says_so(operator: None, image: str, namespace: Namespace) -> None:
    folder = f"{nodes.SHARED}/{FEW}"
    apply_injected(namespace, job(image, folder, (1, ["python", "-I", "-c", ALONE])))
    namespace.wait_for_job("demo", "Succeeded")
    status, said = judged("--job", "demo", "-n", namespace.name)
    assert status == 3 and f"pod {faults.PODS[0]} has the observer, and no line of it: " in said, said


@pytest.fixture
def policy(own_cluster: None, namespace: Namespace) -> Iterator[None]:
    """The policy of the documentation, on this namespace."""
    document = ROOT / "docs/guides/observe-policy.yaml"
    folder = observe("path").strip()
    namespace.kubectl("create", "configmap", "torchtally-observer", f"--from-file={folder}")
    run("kubectl", "label", "namespace", namespace.name, "torchtally.io/observe=true")
    run("kubectl", "apply", "--filename", str(document))
    yield
    run("kubectl", "delete", "--filename", str(document))


def test_a_policy_observes_all_jobs_of_a_namespace(
    operator: None, image: str, data: None, namespace: Namespace, policy: None
) -> None:
    container = {"name": "pytorch", "image": image}
    labels = {"training.kubeflow.org/job-name": "probe"}
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "labels": labels}}
    probe |= {"spec": {"containers": [container]}}

    def mutated() -> bool:
        text = namespace.kubectl("create", "--dry-run=server", "--output=json", "--filename=-", text=json.dumps(probe))
        return any(each["name"] == "torchtally-observer" for each in json.loads(text)["spec"].get("volumes", []))

    wait_for("the policy to be in force", mutated)
    command = [*MAIN, *FAST]
    namespace.apply(job(image, f"{nodes.SHARED}/{FEW}", (1, command), (1, command)))
    namespace.wait_for_job("demo", "Succeeded")
    namespace.wait_for_pods_to_end()
    status, said = judged("--job", "demo", "-n", namespace.name)
    assert status == 0 and "✓ each sample handed out exactly once" in said, said
