"""A TrainJob as a job of this machine: its runtime with what the job changes in it, as Kubeflow Trainer merges them."""

import copy
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Literal

from torchtally.errors import Refused
from torchtally.local import schema
from torchtally.local.job import LocalJob, Replica, RestartPolicy, quantity

KIND: Literal["TrainJob"] = "TrainJob"
API_VERSION = "trainer.kubeflow.org/v1alpha1"
CONTAINER = "node"  # that trains, and the name of its replicated job
NODE = "Node"  # the replica type here
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
_CPU_ALONE = ("auto", "cpu")  # as many processes as CPUs, where no GPU is requested

Object = dict[str, Any]


def check(document: Object) -> None:
    """Raise Refused with what the API server would say of a TrainJob."""
    if problems := [*schema.train_job_errors(document)]:
        raise Refused(f"{KIND} is invalid: {'; '.join(problems)}")


def runtime_of(job: Object, documents: list[Object]) -> Object | None:
    """The runtime that a TrainJob names, if it is among these objects."""
    reference = job["spec"]["runtimeRef"]
    wanted = reference.get("kind", "ClusterTrainingRuntime"), reference["name"]
    named = (each for each in documents if each.get("kind") in _RUNTIMES)
    return next((each for each in named if (each["kind"], each.get("metadata", {}).get("name")) == wanted), None)


def local_job(
    document: Object, runtime: Object | None, config: Mapping[tuple[str, str], Mapping[str, str]]
) -> tuple[LocalJob, list[str]]:
    """The job, and warnings. Raises Refused for a runtime that is not valid, or that cannot run here."""
    title = f"{KIND} {document['metadata']['name']}"
    spec, warnings = document["spec"], list[str]()
    reference = spec["runtimeRef"]
    named = f"{reference.get('kind', 'ClusterTrainingRuntime')} {reference['name']}"
    if runtime is None:
        warnings.append(f"{named} is not in the file: a runtime of one plain container takes its place")
        runtime = {"spec": {"template": {"spec": {"replicatedJobs": [{"name": CONTAINER}]}}}}
    if problems := [*schema.runtime_errors(runtime)]:
        raise Refused(f"{named} is invalid: {'; '.join(problems)}")
    policy = runtime["spec"].get("mlPolicy") or {}
    if other := next((each for each in policy if each not in ("numNodes", "torch")), None):
        raise Refused(f"{title} cannot run here: its runtime has mlPolicy.{other}, and only mlPolicy.torch is known")
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    own = next((copy.deepcopy(each) for each in jobs if each.get("name") == CONTAINER), None)
    if own is None:
        raise Refused(f"{title} cannot run here: {named} has no replicated job named {CONTAINER}")
    beside = [each.get("name") for each in jobs if each.get("name") != CONTAINER]
    warnings += [f"the replicated job {name} of {named} does not run here" for name in beside]
    trainer = spec.get("trainer") or {}
    batch = own.get("template", {}).get("spec", {})
    template = _template(batch.get("template") or {}, trainer, f"of {named}")
    for patch in _patches(spec):
        template = merged(template, patch)
    if problems := [*schema.template_errors(template)]:
        raise Refused(f"{title} with its runtime is invalid: {'; '.join(problems)}")
    container = next(each for each in template["spec"]["containers"] if each["name"] == CONTAINER)
    given = (policy.get("torch") or {}).get("numProcPerNode", "auto")
    replica = Replica(
        kind=NODE,
        count=trainer.get("numNodes") or policy.get("numNodes") or 1,
        restart_policy=_restart_policy(template, batch),
        template=template,
        container_name=CONTAINER,
    )
    job = LocalJob(
        name=document["metadata"]["name"],
        namespace=document["metadata"].get("namespace", "default"),
        replicas={NODE: replica},
        nproc_per_node=_processes(trainer.get("numProcPerNode", given), container, trainer),
        elastic=None,
        run_policy={
            "cleanPodPolicy": "Running",
            "backoffLimit": batch.get("backoffLimit", 6),
            **{name: spec[name] for name in ("activeDeadlineSeconds", "suspend") if name in spec},
        },
        metadata=document["metadata"],
        config=config,
        kind=KIND,
    )
    return job, warnings


def _template(template: Object, trainer: Object, image: str) -> Object:
    """The pods of a runtime, with what `trainer` of the job sets."""
    set_here: Object = {name: trainer[name] for name in ("image", "command", "args", "env") if name in trainer}
    if "resourcesPerNode" in trainer:
        set_here["resources"] = trainer["resourcesPerNode"]
    template = merged({"spec": {"containers": [{"name": CONTAINER}]}}, template)
    template = merged(template, {"spec": {"containers": [{"name": CONTAINER, **set_here}]}})
    for each in template["spec"]["containers"]:
        each.setdefault("image", image)
    return template


def _patches(spec: Object) -> Iterator[Object]:
    """What the job changes in the template of its nodes: `runtimePatches`, and `podTemplateOverrides` before 2.2."""
    for patch in spec.get("runtimePatches") or []:
        jobs = patch.get("trainingRuntimeSpec", {}).get("template", {}).get("spec", {}).get("replicatedJobs") or []
        yield from (
            each.get("template", {}).get("spec", {}).get("template", {})
            for each in jobs
            if each.get("name") == CONTAINER
        )
    for override in spec.get("podTemplateOverrides") or []:
        if any(target.get("name") == CONTAINER for target in override.get("targetJobs") or []):
            yield {name: override[name] for name in ("metadata", "spec") if name in override}


def merged(one: Any, other: Any) -> Any:
    """`one` with the fields of `other`. Lists of objects with names are merged by these, and others replaced."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {name: merged(one[name], value) if name in one else value for name, value in other.items()}
    lists = isinstance(one, list) and isinstance(other, list)
    if lists and all(isinstance(each, dict) and "name" in each for each in (*one, *other)):
        found = {each["name"]: each for each in one}
        for each in other:
            found[each["name"]] = merged(found.get(each["name"], {}), each)
        return list(found.values())
    return other


def _processes(given: Any, container: Object, trainer: Object) -> str:
    """The processes of a node: by default, one for each CPU of `resourcesPerNode` that has no GPU."""
    resources = (container.get("resources") or {}) if "resourcesPerNode" in trainer else {}
    limits = resources.get("limits") or resources.get("requests") or {}
    if given in _CPU_ALONE and limits and not any("gpu" in name.lower() for name in limits):
        return str(max(1, ceil(quantity(limits.get("cpu", 1)))))
    return str(given)


def _restart_policy(template: Object, batch: Object) -> RestartPolicy:
    """How a failed pod of a Job is followed by another one, in the words of PyTorchJob."""
    if template["spec"].get("restartPolicy", "OnFailure") == "OnFailure":
        return "OnFailure"
    if batch.get("backoffLimit", 6) == 0:
        return "Never"
    rules = (batch.get("podFailurePolicy") or {}).get("rules") or []
    return "ExitCode" if any(rule.get("action") == "FailJob" for rule in rules) else "OnFailure"
