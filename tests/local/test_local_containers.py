"""Pods as containers: the manifest's image, names, volumes and limits, and nothing left behind."""

import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import until
from livejobs import Live
from localjobs import Object, container, load, pod_spec, pytorchjob, read, run_script, start_script, write

from torchtally.local import containers, environment
from torchtally.local.controller import Controller

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
IMAGE = "debian:trixie-slim"


def docker(*arguments: str) -> list[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout.split()


def things(name: str) -> dict[str, list[str]]:
    """What of a job the engine knows of."""
    return {
        "containers": docker("container", "ls", "--all", "--quiet", "--filter", f"name={name}-"),
        "networks": docker("network", "ls", "--quiet", "--filter", f"name={name}-"),
        "volumes": docker("volume", "ls", "--quiet", "--filter", f"name={name}-"),
    }


@pytest.fixture
def name() -> Iterator[str]:
    """A job's name that no other run has; nothing of it may be left."""
    unique = f"tt{secrets.token_hex(3)}"
    yield unique
    until("nothing of the job is left", lambda: not any(things(unique).values()))


def named(name: str, *scripts: str, workers: int = 1) -> Object:
    """The image has no bash to rely on."""
    job = pytorchjob(*scripts, workers=workers) | {"metadata": {"name": name}}
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["command"][0] = "sh"
    return job


def test_each_pod_is_a_container_that_the_others_find_by_name(tmp_path: Path, name: str) -> None:
    master = "until test -e /met/$HOSTNAME-$0 -a -e /met/$HOSTNAME-$1; do sleep 0.1; done"
    worker = "getent hosts $MASTER_ADDR >/dev/null && echo found $MASTER_ADDR; touch /met/$MASTER_ADDR-$(hostname)"
    job = named(name, master, worker, workers=2)
    container(job)["args"] = [f"{name}-worker-0", f"{name}-worker-1"]
    for kind in ("Master", "Worker"):
        pod_spec(job, kind)["volumes"] = [{"name": "met", "hostPath": {"path": str(tmp_path)}}]
        container(job, kind)["volumeMounts"] = [{"name": "met", "mountPath": "/met"}]
    ended = run_script(write(tmp_path, job), "--docker", PATH=slow_to_make(f"{name}-master-0", tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"[{name}-worker-{i}] found {name}-master-0" for i in range(2)]


def slow_to_make(container_name: str, folder: Path) -> str:
    """An engine, as far as PATH goes, that takes two seconds for this container, so that the others are made before."""
    tool = folder / "bin" / "docker"
    tool.parent.mkdir()
    slow = f'case "$*" in *"--name {container_name} "*) sleep 2;; esac'
    tool.write_text(f'#!/bin/sh\n{slow}\nexec {shutil.which("docker")} "$@"\n')
    tool.chmod(0o755)
    return f"{tool.parent}{os.pathsep}{os.environ['PATH']}"


def test_environment_is_the_job_s_and_the_image_s_alone(tmp_path: Path, name: str) -> None:
    job = named(name, "env -0 | tr '\\0\\n' '\\n '")
    container(job)["env"] = [{"name": "OWN", "value": "of $(POD)"}, {"name": "LINES", "value": "two\nlines"}]
    ended = run_script(write(tmp_path, job), "--docker", SOME_SECRET="not for a pod")
    seen = dict(line.removeprefix(f"[{name}-master-0] ").split("=", 1) for line in ended.stdout.splitlines())
    (pod,) = load(tmp_path, job).pods
    given = environment.pod_environment(load(tmp_path, job), pod)
    assert {key: value for key, value in seen.items() if key in given} == given | {"LINES": "two lines"}
    assert seen.keys() - given.keys() <= {"HOSTNAME", "PATH", "HOME", "PWD", "SHLVL", "_"}
    assert seen["HOSTNAME"] == pod.name


def test_volumes(tmp_path: Path, name: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "given").write_text("from the host\n")
    script = (
        "cat /host/given; touch /host/new 2>/dev/null || echo read-only; echo model >/model/file;"
        "stat -f -c %T /memory; df -k --output=size /memory | tail -n 1 | tr -d ' ';"
        "echo x >>/scratch/starts; test $(wc -l </scratch/starts) = 2"
    )
    job = named(name, script)
    pod_spec(job)["volumes"] = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
        {"name": "host", "hostPath": {"path": str(shared)}},
        {"name": "model", "persistentVolumeClaim": {"claimName": f"{name}-claim"}},
    ]
    container(job)["volumeMounts"] = [
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "host", "mountPath": "/host", "readOnly": True},
        {"name": "model", "mountPath": "/model"},
    ]
    pod_spec(job)["securityContext"] = {"runAsUser": 1000, "runAsGroup": 1000}
    container(job)["securityContext"] = {"readOnlyRootFilesystem": True}
    try:
        ended = run_script(write(tmp_path, job), "--docker", "--json")
        lines = [line.removeprefix(f"[{name}-master-0] ") for line in ended.stdout.splitlines()]
        # An emptyDir outlives its container, not its pod.
        once = ["from the host", "read-only", "tmpfs", "16384"]
        assert lines[:-1] == once * 2, ended.stderr
        assert json.loads(lines[-1])["pods"][0]["restarts"] == 1
        kept = ["run", "--rm", "--volume", f"{name}-claim:/model", IMAGE, "cat", "/model/file"]
        assert docker(*kept) == ["model"]
    finally:
        subprocess.run(["docker", "volume", "rm", "--force", f"{name}-claim"], capture_output=True, check=False)


def test_a_pod_that_is_deleted_frozen_and_killed(tmp_path: Path, name: str) -> None:
    """A killed container's pod keeps its volumes, a deleted pod's successor has new ones."""
    script = "echo x >>/scratch/starts; echo start $(wc -l </scratch/starts); while :; do echo tick; sleep 0.1; done"
    job = named(name, "echo up; exec sleep 60", script)
    pod_spec(job, "Worker")["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    for kind in ("Master", "Worker"):
        pod_spec(job, kind)["terminationGracePeriodSeconds"] = 0
    container(job, "Worker")["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    worker = f"{name}-worker-0"
    with Live(load(tmp_path, job), lambda job: containers.Containers(job, None)) as live:
        live.until("start 1", "tick")
        live.do(lambda it: it.kill(worker))
        live.until("start 2", "tick")
        live.do(lambda it: it.freeze(worker))
        wait_for(worker, "Paused")
        live.skip()
        live.do(lambda it: it.thaw(worker))
        live.until("tick")
        live.do(lambda it: it.delete(worker))
        live.until("start 1", "tick")
        live.do(Controller.suspend)
        live.do(Controller.resume)
        live.until("up", "start 1", "tick")
    assert live.starts == {f"{name}-master-0": 2, worker: 4}


def test_limits_and_security(tmp_path: Path, name: str) -> None:
    job = named(name, "exec sleep 60")
    pod_spec(job)["securityContext"] = {
        "runAsUser": 1000,
        "runAsGroup": 0,
        "fsGroup": 2000,
        "supplementalGroups": [3000],
    }
    container(job)["securityContext"] = {
        "runAsUser": 1001,  # the container's own word counts
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
    }
    container(job)["resources"] = {"limits": {"cpu": "500m", "memory": "64Mi"}}
    container(job)["workingDir"] = "/var"
    pod_spec(job)["terminationGracePeriodSeconds"] = 0
    runner = start_script(write(tmp_path, job), "--docker")
    try:
        (found,) = wait_for(f"{name}-master-0", "Running")
    finally:
        runner.send_signal(signal.SIGTERM)
        _, err = runner.communicate(timeout=300)
    host = found["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["ReadonlyRootfs"]) == (500_000_000, 64 << 20, True)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], ["CAP_NET_BIND_SERVICE"])
    assert sorted(host["GroupAdd"]) == ["2000", "3000"]
    assert (found["Config"]["User"], found["Config"]["WorkingDir"]) == ("1001:0", "/var")
    assert "unsupported" not in err
    assert runner.returncode == 143


def wait_for(container_name: str, state: str) -> list[Object]:
    found: list[Object] = []

    def reached() -> bool:
        answer = subprocess.run(["docker", "container", "inspect", container_name], capture_output=True, check=False)
        found[:] = json.loads(answer.stdout or "[]")
        return bool(found) and found[0]["State"][state]

    until(f"{container_name} is {state}", reached)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_runner_ends_early(tmp_path: Path, name: str, number: signal.Signals) -> None:
    script = "trap 'echo asked to end; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    runner = start_script(write(tmp_path, named(name, script, script)), "--docker")
    read(runner, f"[{name}-master-0] up", f"[{name}-worker-0] up")
    # Ctrl-C on a terminal is for the runner and for all that it has not set apart.
    os.killpg(runner.pid, number) if number is signal.SIGINT else runner.send_signal(number)
    out, _ = runner.communicate(timeout=300)
    if number is signal.SIGINT:
        assert runner.returncode == 130
        assert sorted(out.splitlines()) == [f"[{name}-{pod}-0] asked to end" for pod in ("master", "worker")]
        assert not any(things(name).values())
    # After SIGKILL, the fixture waits for the rest to go.


def test_the_image_s_entry_point_and_another_image(tmp_path: Path, name: str) -> None:
    job = named(name, "true")
    container(job)["image"] = "registry.invalid/none:1"
    container(job)["imagePullPolicy"] = "Always"
    del container(job)["command"]
    container(job)["args"] = ["sh", "-c", "echo $(RANK) of $WORLD_SIZE"]
    ended = run_script(write(tmp_path, job), "--docker", IMAGE)
    assert ended.stdout == f"[{name}-master-0] 0 of 1\n"


def test_a_failure_of_the_engine_is_one_sentence(tmp_path: Path, name: str) -> None:
    job = named(name, "true")
    container(job)["image"] = "no/such-image:1"
    container(job)["imagePullPolicy"] = "Never"
    ended = run_script(write(tmp_path, job), "--docker")
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "torchtally local: docker container create: Error response from daemon: No such image: no/such-image:1"
    ]


def test_a_name_in_use_is_said_and_left_alone(tmp_path: Path, name: str) -> None:
    docker("container", "create", "--name", f"{name}-master-0", IMAGE, "true")
    try:
        ended = run_script(write(tmp_path, named(name, "true")), "--docker")
        assert ended.returncode == 1
        assert f'"/{name}-master-0" is already in use' in ended.stderr
    finally:
        assert docker("container", "rm", f"{name}-master-0") == [f"{name}-master-0"]


def test_no_docker_is_one_sentence(tmp_path: Path) -> None:
    ended = run_script(write(tmp_path, pytorchjob("true")), "--docker", PATH=str(tmp_path))
    assert (ended.returncode, ended.stderr) == (1, "torchtally local: docker: no such command on PATH\n")


def test_what_docker_supports_is_not_ignored(tmp_path: Path, name: str) -> None:
    job = named(name, "true")
    container(job)["resources"] = {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}}
    pod_spec(job)["nodeSelector"] = {"a": "b"}
    pod_spec(job)["volumes"] = [{"name": "v", "configMap": {"name": "c"}}, {"name": "e", "emptyDir": {}}]
    container(job)["volumeMounts"] = [{"name": "e", "mountPath": "/e", "subPath": "x"}]
    ended = run_script(write(tmp_path, job), "--docker")
    assert ended.stderr.splitlines()[0] == (
        "torchtally local: unsupported here and ignored: 1 nvidia.com/gpu (none here), nodeSelector, volume v, "
        "subPath of e"
    )
