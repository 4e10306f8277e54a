"""What the chart renders is what the jobs' controllers and restricted Pod Security accept."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from crds import kept, published

Render = Callable[..., list[dict[str, Any]]]
Object = dict[str, Any]
Schema = dict[str, Any]

ROOT = Path(__file__).parents[2]

VALUES: dict[str, tuple[str, ...]] = {
    "defaults": (),
    **{path.stem: ("-f", str(path)) for path in sorted((ROOT / "charts/torchtally/ci").iterdir())},
    "amd": ("--set", "resources.gpuResourceName=amd.com/gpu,resources.gpu=8,image.tag=rocm,nprocPerNode=auto"),
    "command": ("--set", "task=,command={bash,-c},args={python main.py},master.image.tag=v1,master.args={a.py}"),
    "ports": ("--set", "network.port=23457,ports[0].containerPort=8080,workingDir=/app,metrics.enabled=true"),
    "elastic": (
        "--set=elasticPolicy.minReplicas=1,elasticPolicy.maxReplicas=4,elasticPolicy.maxRestarts=3,model.enabled=false",
        '--set-json=elasticPolicy.rdzvConf=[{"key":"last_call_timeout","value":"5"}]',
    ),
    "everything": (
        "--set=backoffLimit=0,activeDeadlineSeconds=1000000,ttlSecondsAfterFinished=60,restartPolicy=ExitCode",
        "--set=cleanPodPolicy=All,shmSize=1Gi,data.persistentVolumeClaim.claimName=images,model.existingClaim=models",
        "--set=env[0].name=A,env[0].valueFrom.fieldRef.fieldPath=status.podIP,envFrom[0].secretRef.name=keys",
        "--set=image.pullSecrets[0].name=registry,tolerations[0].operator=Exists,nodeSelector.pool=gpu",
        "--set=resources.limits.rdma/hca=1,resources.requests.cpu=500m,labels.team=vision,annotations.owner=me",
        r"--set=files.my\.py=pass",
        "--set=suspend=true,managedBy=kueue.x-k8s.io/multikueue,schedulingPolicy.minAvailable=4,jobNameRevision=true",
        "--set=schedulingPolicy.minResources.cpu=4,priorityClassName=high,runtimeClassName=nvidia,schedulerName=volcano",
        "--set=sidecars[0].name=log,sidecars[0].image=busybox,initContainers[0].name=a,initContainers[0].image=busybox",
        "--set=volumes[0].name=scratch,volumes[0].emptyDir.medium=Memory",
        "--set=volumeMounts[0].name=scratch,volumeMounts[0].mountPath=/scratch,model.subPath=a",
        "--set=topologySpreadConstraints[0].maxSkew=1,topologySpreadConstraints[0].topologyKey=zone",
        "--set=topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule,master.env[0].name=B,worker.shmSize=2Gi",
        "--set=podDisruptionBudget.enabled=true,networkPolicy.from[0].ipBlock.cidr=10.0.0.0/8",
        "--set=resourceClaims[0].name=gpu,resourceClaims[0].resourceClaimTemplateName=gpu,commonLabels.team=vision",
        "--set=openshift=true",
        "--api-versions=monitoring.coreos.com/v1/PodMonitor",
        "--set=serviceAccount.annotations.role=reader,metrics.enabled=true,metrics.dashboard=true,network.nccl.A=b",
        '--set-json=affinity={"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":'
        '[{"topologyKey":"kubernetes.io/hostname"}]}}',
    ),
}
TRAINJOB = "--set=api=trainjob,model.accessMode=ReadWriteMany"
VALUES |= {
    "train-defaults": (TRAINJOB,),
    "train-everything": (
        TRAINJOB,
        *VALUES["everything"],
        # What a TrainJob does not have.
        "--set=cleanPodPolicy=None,ttlSecondsAfterFinished=null,schedulingPolicy=null,master=null,worker=null",
        "--set=podGroupPolicy.volcano.networkTopology.mode=soft,nprocPerNode=auto",
    ),
    "train-runtime": (
        TRAINJOB,
        "--set=runtime.name=torch-distributed,runtime.kind=ClusterTrainingRuntime,image.pullSecrets[0].name=registry",
        "--set=tolerations[0].operator=Exists,nodeSelector.pool=gpu,env[0].name=A,env[0].value=b",
        '--set-json=affinity={"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":'
        '[{"topologyKey":"kubernetes.io/hostname"}]}}',
    ),
}


@pytest.fixture(scope="session")
def crds() -> dict[str, Schema]:
    return kept()


@pytest.mark.nightly
def test_the_kept_schemas_are_those_that_the_controllers_publish() -> None:
    if shutil.which("go") is None:
        pytest.skip("the controllers' schemas come from Go modules, and go is not on PATH")
    assert kept() == published(), "run `python tests/chart/crds.py`"


def replicas(job: Object) -> Object:
    specs: Object = job["spec"]["pytorchReplicaSpecs"]
    return specs


def flat(documents: list[Object]) -> list[Object]:
    """With the items of lists in their place."""
    return [each for document in documents for each in document.get("items", [document])]


def pod_specs(documents: list[Object]) -> list[Object]:
    found = []
    for each in flat(documents):
        match each["kind"]:
            case "Pod":
                found.append(each["spec"])
            case "PyTorchJob":
                found += [replica["template"]["spec"] for replica in replicas(each).values()]
            case "TrainingRuntime":
                jobs = each["spec"]["template"]["spec"]["replicatedJobs"]
                found += [job["template"]["spec"]["template"]["spec"] for job in jobs]
            case "TrainJob":
                for patch in each["spec"].get("runtimePatches", []):
                    jobs = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
                    found += [job["template"]["spec"]["template"]["spec"] for job in jobs]
    return found


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("helm", ["helm", "helm3"], indirect=True)
def test_jobs_fit_their_controllers_schema_and_their_pods_restricted_pod_security(
    render: Render, crds: dict[str, Schema], values: tuple[str, ...]
) -> None:
    documents = render(*values)
    found = [each for each in flat(documents) if each["kind"] in crds]
    kinds = [each["kind"] for each in found]
    assert sum(kind.endswith("Job") for kind in kinds) == 1
    assert ("PodMonitor" in kinds) is ("--api-versions=monitoring.coreos.com/v1/PodMonitor" in values)
    for each in found:
        jsonschema.Draft202012Validator(crds[each["kind"]]).validate(each)
    specs = pod_specs(documents)
    assert len(specs) > 1  # of the job and of its test
    for pod in specs:
        assert_restricted(pod)


def test_the_policy_for_signed_images_is_one_that_its_controller_takes(crds: dict[str, Schema]) -> None:
    for policy in yaml.safe_load_all((ROOT / "docs/guides/signed-images.yaml").read_text()):
        assert policy["apiVersion"] == "policy.sigstore.dev/v1beta1"
        jsonschema.Draft202012Validator(crds[policy["kind"]]).validate(policy)


def test_the_application_of_the_readme_is_one_that_argo_cd_takes(
    render: Render, crds: dict[str, Schema], tmp_path: Path
) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "charts/torchtally/README.md").read_text(), re.DOTALL)
    [application] = [yaml.safe_load(block) for block in blocks if "kind: Application" in block]
    jsonschema.Draft202012Validator(crds["Application"]).validate(application)
    source = application["spec"]["source"]
    assert (ROOT / source["path"] / "Chart.yaml").exists()
    (values := tmp_path / "values.yaml").write_text(yaml.safe_dump(source["helm"]["valuesObject"]))
    assert {"PyTorchJob", "Job"} <= {each["kind"] for each in flat(render(f"--values={values}"))}


def test_the_operators_schema_finds_mistakes(render: Render, crds: dict[str, Schema]) -> None:
    [job] = [document for document in render() if document["kind"] == "PyTorchJob"]
    validator = jsonschema.Draft202012Validator(crds["PyTorchJob"])
    replicas(job)["Worker"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    job["spec"]["nprocPerNode"] = 1
    mistaken = {error.json_path.rsplit(".", 1)[1] for error in validator.iter_errors(job)}
    assert mistaken == {"nprocPerNode", "containers[0]"}


def assert_restricted(pod: Object) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"].get("runAsUser") != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for volume in pod.get("volumes", []):
        assert set(volume) - {"name"} <= {"configMap", "emptyDir", "persistentVolumeClaim"}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True  # beyond restricted: nothing is written into the image
