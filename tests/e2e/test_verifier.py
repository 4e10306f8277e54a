"""The verifier in the cluster: as a Job that waits for the training, and for users who lack rights."""

import sys
from pathlib import Path

import pytest
import yaml
from cluster import CHART, ROOT, Namespace, Object, image_values, own_program, run, wait_for

SINGLE = [f"--values={CHART / 'ci/single-values.yaml'}", "--set=resources.requests.cpu=100m,model.enabled=false"]
SINGLE += ["--set=restartPolicy=Never"]

TALLIED = """
import torch, torchtally
torch.distributed.init_process_group("gloo")
with torchtally.Account("numbers", epochs=1) as account:
    for batch in account.loader(range(60), batch_size=5, trains=False):
        pass
torch.distributed.destroy_process_group()
"""
UNTALLIED = "print('trained')"
FAILING = "raise SystemExit('no')"


def apply(namespace: Namespace, name: str, *options: str) -> None:
    """As tools do that know nothing of Helm's hooks."""
    rendered = run(
        "helm", "template", name, str(CHART), "--namespace", namespace.name, "--skip-tests", *SINGLE, *options
    )
    namespace.kubectl("apply", "--filename=-", text=rendered.stdout)


def verifiers(namespace: Namespace) -> dict[str, Object]:
    """The verifiers' Jobs by the names of the trainings."""
    return {name.rpartition("-verify-")[0]: job for name, job in namespace.list("job").items()}


def end(namespace: Namespace, name: str) -> tuple[str, str, str]:
    """How the verifier's Job ends: its condition, the reason, and what its pod says at last."""

    def ended() -> Object | None:
        conditions = verifiers(namespace)[name].get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] in ("Complete", "Failed")), None)

    condition = wait_for(f"the verifier's Job of {name} to end", ended)
    log = namespace.kubectl("logs", f"job/{verifiers(namespace)[name]['metadata']['name']}")
    return condition["type"], condition.get("reason", ""), log.splitlines()[-1]


def test_a_job_that_is_complete_if_the_run_is_proved(operator: None, namespace: Namespace) -> None:
    namespace.restrict()
    quota = ["requests.cpu=4", "limits.cpu=16", "requests.memory=8Gi", "limits.memory=16Gi", "pods=20"]
    namespace.kubectl("create", "quota", "demo", f"--hard={','.join(quota)}")
    values = ["--set=verifier.job=true", *image_values()]
    apply(namespace, "held", *values, *own_program("python", "-c", TALLIED), "--set=suspend=true")
    apply(namespace, "proved", *values, *own_program("python", "-c", TALLIED))
    apply(namespace, "unknown", *values, *own_program("python", "-c", UNTALLIED))
    apply(namespace, "failed", *values, *own_program("python", "-c", FAILING))

    kind, _, said = end(namespace, "proved")
    assert kind == "Complete" and said.startswith("✓ the proof holds: run "), said
    kind, reason, said = end(namespace, "unknown")
    assert (kind, reason, said[:14]) == ("Failed", "PodFailurePolicy", "✗ incomplete: ")
    kind, reason, said = end(namespace, "failed")
    assert (kind, reason, said[:39]) == ("Failed", "PodFailurePolicy", "✗ failed: PyTorchJob failed has failed:")

    assert [name for name in namespace.list("pod") if name.startswith("held")] == []
    apply(namespace, "held", *values, *own_program("python", "-c", TALLIED))
    assert end(namespace, "held")[0] == "Complete"
    made = {name: job["status"].get("failed", 0) for name, job in verifiers(namespace).items()}
    assert made == {"held": 0, "proved": 0, "unknown": 1, "failed": 1}  # no pod was tried again


# Users that have Kubernetes' role `edit` in the namespace, and what else is named.

JOBS = [{"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": ["*"]}]
PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]


def allow(namespace: Namespace, subject: str, rules: list[Object]) -> None:
    name = f"{subject.rpartition(':')[2].rpartition('=')[2]}-more"
    version = "rbac.authorization.k8s.io/v1"
    namespace.apply({"apiVersion": version, "kind": "Role", "metadata": {"name": name}, "rules": rules})
    namespace.kubectl("create", "rolebinding", name, f"--role={name}", subject)


@pytest.mark.nightly
def test_helm_names_the_right_that_a_user_lacks(operator: None, namespace: Namespace) -> None:
    namespace.kubectl("create", "rolebinding", "user", "--clusterrole=edit", "--user=user")
    allow(namespace, "--user=user", JOBS)
    options = [*SINGLE, *own_program("python", "-c", UNTALLIED), "--set=suspend=true", "--kube-as-user=user"]
    refused = namespace.install(*options, check=False)
    assert refused.returncode != 0
    assert 'User "user" cannot get resource "roles" in API group "rbac.authorization.k8s.io"' in refused.stderr
    namespace.helm("uninstall", "demo", "--ignore-not-found")
    namespace.install(*options, "--set=verifier.enabled=false")
    assert namespace.list("pytorchjob").keys() == {"demo"}


@pytest.mark.nightly
def test_the_verifier_names_the_right_that_a_user_lacks(operator: None, namespace: Namespace, tmp_path: Path) -> None:
    namespace.install(*SINGLE, *own_program("python", "-c", UNTALLIED))
    namespace.wait_for_job("demo", "Succeeded")

    def verified(account: str) -> tuple[int, str]:
        config = yaml.safe_load(run("kubectl", "config", "view", "--raw", "--minify").stdout)
        config["users"][0]["user"] = {"token": namespace.kubectl("create", "token", account)}
        path = tmp_path / account
        path.write_text(yaml.safe_dump(config))
        script = str(ROOT / "scripts/verify_shards.py")
        command = ["env", f"KUBECONFIG={path}", sys.executable, script, "--job", "demo", "-n", namespace.name]
        result = run(*command, check=False)
        return result.returncode, result.stderr

    for account, rules, right in (
        ("edit", [], "pytorchjobs.kubeflow.org or trainjobs.trainer.kubeflow.org"),
        ("jobs", JOBS, "pods"),
        ("pods", JOBS + PODS, "pods/log"),
    ):
        namespace.kubectl("create", "serviceaccount", account)
        subject = f"--serviceaccount={namespace.name}:{account}"
        allow(namespace, subject, rules)
        if not rules:
            namespace.kubectl("create", "rolebinding", account, "--clusterrole=edit", subject)
        status, said = verified(account)
        assert status == 2 and f"a role must allow get on {right} (" in said, (account, said)
