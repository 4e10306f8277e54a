"""Each pod's variables and command, variable by variable."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from livejobs import run
from localjobs import Object, container, load, pytorchjob, write

from torchtally.local import environment, manifest, unsupported
from torchtally.local.job import LocalJob


def static(rank: int, nodes: int, nproc: str, world: int, port: int = 23456) -> dict[str, str]:
    return {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": str(port),
        "PET_MASTER_PORT": str(port),
        "MASTER_ADDR": "demo-master-0",
        "PET_MASTER_ADDR": "demo-master-0",
        "WORLD_SIZE": str(world),
        "RANK": str(rank),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": nproc,
        "PET_NNODES": str(nodes),
    }


def environments(job: LocalJob) -> list[dict[str, str]]:
    return [environment.pod_environment(job, pod) for pod in job.pods]


@pytest.mark.parametrize("workers", [0, 1, 3, 6])
@pytest.mark.parametrize(
    ("nproc", "processes"), [(None, 1), ("auto", 1), ("gpu", 1), ("cpu", 1), ("1", 1), ("2", 2), ("8", 8)]
)
def test_static(tmp_path: Path, workers: int, nproc: str | None, processes: int) -> None:
    document = pytorchjob("true", "true" if workers else None, workers)
    if nproc is not None:
        document["spec"]["nprocPerNode"] = nproc
    nodes = workers + 1
    assert environments(load(tmp_path, document)) == [
        static(rank, nodes, nproc or "auto", nodes * processes) for rank in range(nodes)
    ]


def test_the_master_s_port_is_its_own(tmp_path: Path) -> None:
    document = pytorchjob("true", "true")
    container(document)["ports"] = [{"containerPort": 1}, {"name": "pytorchjob-port", "containerPort": 29500}]
    container(document, "Worker")["ports"] = [{"name": "pytorchjob-port", "containerPort": 1}]
    assert environments(load(tmp_path, document)) == [static(rank, 2, "auto", 2, 29500) for rank in range(2)]


def test_workers_alone_are_given_no_rank(tmp_path: Path) -> None:
    job = load(tmp_path, pytorchjob(worker="true", workers=2, nprocPerNode="2"))
    expected = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": "2", "PET_NNODES": "2"}
    assert environments(job) == [expected, expected]


def test_elastic(tmp_path: Path) -> None:
    policy = {
        "minReplicas": 1,
        "maxReplicas": 3,
        "maxRestarts": 5,
        "rdzvBackend": "c10d",
        "rdzvId": "run",
        "rdzvHost": "store.default",
        "rdzvPort": 2379,
        "rdzvConf": [{"key": "timeout", "value": "60"}, {"key": "join_timeout", "value": "90"}],
        "standalone": True,
        "nProcPerNode": 4,
    }
    job = load(tmp_path, pytorchjob(worker="true", workers=2, elasticPolicy=policy))
    expected = {
        "PYTHONUNBUFFERED": "1",
        "PET_RDZV_ENDPOINT": "store.default:2379",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:3",
        "PET_MAX_RESTARTS": "5",
        "PET_NPROC_PER_NODE": "4",
        "PET_RDZV_ID": "run",
        "PET_RDZV_CONF": "timeout=60,join_timeout=90",
        "PET_STANDALONE": "",
    }
    assert environments(job) == [expected, expected]
    # The address is no pod's: it stays.
    local = environment.loopback(job, iter([1, 2]))
    assert environment.pod_environment(job, job.pods[0], local) == expected


def test_pods_that_would_meet_at_an_etcd_server_meet_at_the_first_worker(tmp_path: Path) -> None:
    policy = {"rdzvBackend": "etcd", "rdzvHost": "etcd", "rdzvPort": 2379}
    job = load(tmp_path, pytorchjob(worker="true", workers=2, elasticPolicy=policy))
    for each in environments(job):
        assert (each["PET_RDZV_BACKEND"], each["PET_RDZV_ENDPOINT"]) == ("c10d", "demo-worker-0:23456")
    assert unsupported.found_in(job, unsupported.Support(), []) == [
        "elasticPolicy.rdzvBackend etcd at etcd:2379 (c10d in its place)",
        "image debian:trixie-slim",
    ]


def test_elastic_by_default_meets_at_the_first_worker(tmp_path: Path) -> None:
    document = pytorchjob(worker="true", workers=2, elasticPolicy={})
    container(document, "Worker")["ports"] = [{"name": "pytorchjob-port", "containerPort": 29400}]
    job = load(tmp_path, document)
    expected = {
        "PYTHONUNBUFFERED": "1",
        "PET_RDZV_ENDPOINT": "demo-worker-0:29400",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "2:2",
        "PET_NPROC_PER_NODE": "auto",
    }
    assert environments(job) == [expected, expected]


def test_only_addresses_and_ports_differ_here(tmp_path: Path) -> None:
    job = load(tmp_path, pytorchjob("true", "true", 2, nprocPerNode="2", elasticPolicy={}))
    network = environment.loopback(job, iter([20001, 20002]))
    for pod, cluster in zip(job.pods, environments(job), strict=True):
        here = environment.pod_environment(job, pod, network)
        assert {name: (cluster[name], here[name]) for name in here if cluster[name] != here[name]} == {
            "MASTER_ADDR": ("demo-master-0", "127.0.0.1"),
            "PET_MASTER_ADDR": ("demo-master-0", "127.0.0.1"),
            "MASTER_PORT": ("23456", "20001"),
            "PET_MASTER_PORT": ("23456", "20001"),
            "PET_RDZV_ENDPOINT": ("demo-worker-0:23456", "127.0.0.1:20002"),
        }
        assert here.keys() == cluster.keys()


def test_a_pod_sees_its_variables_and_little_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.setenv("TORCHTALLY_CACHE", "/cache")
    for name in ("RANK", "PYTHONPATH", "OMP_NUM_THREADS", "PET_NNODES", "SOME_SECRET"):
        monkeypatch.setenv(name, "not for a pod")
    document = pytorchjob("exec env -0")
    container(document)["env"] = [{"name": "OWN", "value": "two\nlines"}, {"name": "RANK", "value": "7"}]
    ended = run(tmp_path, document)
    text = "\n".join(line.removeprefix("[demo-master-0] ") for line in ended.lines)
    seen = dict(variable.split("=", 1) for variable in text.split("\0") if variable)
    job = load(tmp_path, document)
    given = environment.pod_environment(job, job.pods[0])
    assert given.keys() <= seen.keys()
    local = {"MASTER_ADDR", "PET_MASTER_ADDR", "MASTER_PORT", "PET_MASTER_PORT"}
    assert {name for name in given if given[name] != seen[name]} == local
    assert (seen["RANK"], seen["OWN"], seen["HOSTNAME"]) == ("0", "two\nlines", "demo-master-0")
    assert (seen["HTTPS_PROXY"], seen["TORCHTALLY_CACHE"]) == ("http://proxy", "/cache")
    assert "not for a pod" not in seen.values()


def test_own_variables_are_expanded_in_their_order(tmp_path: Path) -> None:
    document = pytorchjob("true")
    container(document)["env"] = [
        {"name": "EARLY", "value": "$(LATE) $(MASTER_ADDR)"},  # neither stands before it
        {"name": "LATE", "value": "late"},
        {"name": "BOTH", "value": "$(EARLY), $(LATE), $$(LATE), $(NO"},
        {"name": "LATER", "value": "$(LATE)r"},
        {"name": "EMPTY"},
        {"name": "WORLD_SIZE", "value": "99"},
    ]
    (found,) = environments(load(tmp_path, document))
    assert {name: found[name] for name in ("EARLY", "BOTH", "LATER", "EMPTY", "WORLD_SIZE")} == {
        "EARLY": "$(LATE) $(MASTER_ADDR)",
        "BOTH": "$(LATE) $(MASTER_ADDR), late, $(LATE), $(NO",
        "LATER": "later",
        "EMPTY": "",
        "WORLD_SIZE": "1",
    }


def test_command_and_args_are_expanded_with_all_variables(tmp_path: Path) -> None:
    document = pytorchjob("true")
    container(document)["command"] = ["run", "$(MASTER_ADDR):$(MASTER_PORT)"]
    container(document)["args"] = ["$(OWN)", "$$(OWN)", "$(NONE)", "$HOME", "100$"]
    container(document)["env"] = [{"name": "OWN", "value": "mine"}]
    job = load(tmp_path, document)
    found = environment.command(job.pods[0], environments(job)[0])
    assert found == (["run", "demo-master-0:23456"], ["mine", "$(OWN)", "$(NONE)", "$HOME", "100$"])


@given(st.text(alphabet="$()AB ", max_size=12))
def test_expansion_against_a_reader_of_single_letters(text: str) -> None:
    """After a dollar comes a dollar, or a name in parentheses, or anything else."""
    variables = {"A": "$(B)", "AB": "x", "": "nothing"}
    done, i = "", 0
    while i < len(text):
        after = text[i + 1 : i + 2]
        end = text.find(")", i + 2)
        if text[i] == "$" and after == "$":
            done, i = done + "$", i + 2
        elif text[i] == "$" and after == "(" and end >= 0:
            done, i = done + variables.get(text[i + 2 : end], text[i : end + 1]), end + 1
        else:
            done, i = done + text[i], i + 1
    assert environment.expand(text, variables) == done


def test_references_to_the_pod(tmp_path: Path) -> None:
    paths = {
        "NAME": "metadata.name",
        "NAMESPACE": "metadata.namespace",
        "INDEX": "metadata.labels['training.kubeflow.org/replica-index']",
        "TEAM": "metadata.labels['team']",
        "NOTE": "metadata.annotations['note']",
        "ACCOUNT": "spec.serviceAccountName",
    }
    document = pytorchjob("true", "true", 2)
    document["metadata"]["namespace"] = "train"
    for kind in ("Master", "Worker"):
        template = document["spec"]["pytorchReplicaSpecs"][kind]["template"]
        template["metadata"] = {
            "labels": {"team": "vision", "training.kubeflow.org/replica-index": "mine"},
            "annotations": {"note": "$(NAME)"},
        }
        container(document, kind)["env"] = [
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()),
            {"name": "GREETING", "value": "I am $(NAME)"},
        ]
    found = environments(load(tmp_path, document))[2]
    assert {name: found[name] for name in [*paths, "GREETING"]} == {
        "NAME": "demo-worker-1",
        "NAMESPACE": "train",
        "INDEX": "1",
        "TEAM": "vision",
        "NOTE": "$(NAME)",
        "ACCOUNT": "default",
        "GREETING": "I am demo-worker-1",
    }


def test_references_to_resources(tmp_path: Path) -> None:
    document = pytorchjob("true")
    container(document)["resources"] = {"limits": {"cpu": "1500m", "memory": "1Gi"}, "requests": {"cpu": "500m"}}
    wanted = {
        "CPUS": ("limits.cpu", None, "2"),
        "MILLICPUS": ("limits.cpu", "1m", "1500"),
        "ASKED": ("requests.cpu", "1m", "500"),
        "MEMORY": ("limits.memory", "1Mi", "1024"),
        "ASKED_MEMORY": ("requests.memory", "1Ki", str(1 << 20)),  # as the limit
    }
    container(document)["env"] = [
        {"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, **({"divisor": unit} if unit else {})}}}
        for name, (resource, unit, _) in wanted.items()
    ]
    (found,) = environments(load(tmp_path, document))
    assert {name: found[name] for name in wanted} == {name: value for name, (_, _, value) in wanted.items()}


def with_references() -> Object:
    document = pytorchjob("true")
    container(document)["envFrom"] = [
        {"configMapRef": {"name": "settings"}},
        {"prefix": "S_", "secretRef": {"name": "keys"}},
    ]
    container(document)["env"] = [
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "token", "optional": True}}},
        {"name": "URL", "value": "https://$(S_user):$(TOKEN)@$(level)"},
    ]
    return document


def test_references_to_other_documents_of_the_file(tmp_path: Path) -> None:
    settings = {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"level": "debug"}}
    keys = {
        "kind": "Secret",
        "metadata": {"name": "keys"},
        "data": {"token": "c2VjcmV0"},
        "stringData": {"user": "me"},
    }
    job = manifest.load(write(tmp_path, settings, keys, with_references())).job
    (found,) = environments(job)
    assert {name: value for name, value in found.items() if name not in static(0, 1, "auto", 1)} == {
        "level": "debug",
        "S_token": "secret",
        "S_user": "me",
        "LEVEL": "debug",
        "TOKEN": "secret",
        "URL": "https://me:secret@debug",
    }
    assert environment.unresolved(job) == []


def test_references_to_nothing_are_named(tmp_path: Path) -> None:
    document = with_references()
    container(document)["env"].append({"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "metadata.colour"}}})
    assert environment.unresolved(load(tmp_path, document)) == [
        "envFrom configMapRef settings",
        "envFrom secretRef keys",
        "env LEVEL from configMapKeyRef settings",
        "env TOKEN from secretKeyRef keys",
        "env F from fieldRef metadata.colour",
    ]
