"""A pod as a container of Docker's: the manifest's image, volumes and limits, and the pods' own names."""

import asyncio
import io
import secrets
import subprocess
import tarfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from torchtally.local import environment, machine
from torchtally.local.job import LocalJob, Pod, quantity
from torchtally.local.unsupported import Support

SUPPORTED = Support(
    pod=frozenset({"volumes", "securityContext"}),
    container=frozenset({"securityContext"}),
    limits=frozenset({"cpu", "memory"}),
    image=True,
)
_LABEL = "torchtally.run"
# Waits for the end of the runner, however it comes, and then removes what bears the run's label.
_JANITOR = """
cat >/dev/null
docker container ls --all --quiet --filter "label=$0" | xargs docker container rm --force --volumes
docker network ls --quiet --filter "label=$0" | xargs docker network rm
docker volume ls --quiet --filter "label=$0" | xargs docker volume rm
"""


class EngineError(Exception):
    """The container engine did not do what was asked; the text is its own."""


class Containers:
    """Each pod is a container of the same name, on a network of this run's own."""

    def __init__(self, job: LocalJob, image: str | None) -> None:
        self._job = job
        self._image = image  # in place of the manifest's
        self._run = secrets.token_hex(4)
        self._label = f"{_LABEL}={self._run}"
        self._network = f"{job.name}-{self._run}"
        self.gpus = machine.gpus()
        self._visible_gpus = machine.visible_gpus(job.pods, self.gpus)
        self._cores = 0
        self._made: set[str] = set()
        self._master_started = asyncio.Event()

    async def __aenter__(self) -> "Containers":
        self._cores = int(await _docker("info", "--format", "{{.NCPU}}"))
        self._janitor = subprocess.Popen(
            ["sh", "-c", _JANITOR, self._label],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )
        await _docker("network", "create", "--label", self._label, self._network)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._janitor.communicate()

    async def start(self, pod: Pod, new: bool) -> Process:
        if pod.replica.kind == "Master":
            self._master_started.clear()
        if pod.name in self._made:  # a container that restarts has a new file system, and its pod's volumes
            await _docker("container", "rm", "--volumes", pod.name)
        if new:
            await self._make_volumes(pod)
        await _docker(*self._create(pod))
        self._made.add(pod.name)
        if "Master" in self._job.replicas and pod.replica.kind != "Master":
            await self._master_up()
        process = await asyncio.create_subprocess_exec(
            *("docker", "container", "start", "--attach", pod.name),
            stdin=subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        if pod.replica.kind == "Master":
            self._master_started.set()
        return process

    async def _master_up(self) -> None:
        """Wait until the Master's name resolves, as the operator's init container does."""
        state = ("container", "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", self._job.pods[0].name)
        while True:
            await self._master_started.wait()
            with suppress(EngineError):  # it is just being replaced
                if await _docker(*state) != "created 0":
                    return
            await asyncio.sleep(0.1)

    def stop(self, pod: Pod, process: Process) -> None:
        self._signal("stop", "-t", str(pod.grace), pod.name)

    def kill(self, pod: Pod, process: Process) -> None:
        self._signal("kill", pod.name)

    def freeze(self, pod: Pod, process: Process) -> None:
        self._signal("pause", pod.name)

    def thaw(self, pod: Pod, process: Process) -> None:
        self._signal("unpause", pod.name)

    def _signal(self, *arguments: str) -> None:
        quiet = subprocess.DEVNULL
        subprocess.Popen(["docker", "container", *arguments], stdout=quiet, stderr=quiet, start_new_session=True)

    def _create(self, pod: Pod) -> Iterator[str]:
        variables = environment.pod_environment(self._job, pod)
        command, args = environment.command(pod, variables)
        yield from ("container", "create", "--name", pod.name, "--hostname", pod.name, "--network", self._network)
        yield from ("--label", self._label)
        if (policy := pod.container.get("imagePullPolicy")) and not self._image:
            yield from ("--pull", {"Always": "always", "Never": "never"}.get(policy, "missing"))
        for name, value in variables.items():
            yield from ("--env", f"{name}={value}")
        if directory := pod.container.get("workingDir"):
            yield from ("--workdir", directory)
        yield from self._limits(pod)
        yield from _security({**pod.spec.get("securityContext", {}), **pod.container.get("securityContext", {})})
        yield from self._mounts(pod)
        if command:
            yield from ("--entrypoint", command[0])
        yield self._image_of(pod)
        yield from [*(command[1:] if command else []), *args]

    def _limits(self, pod: Pod) -> Iterator[str]:
        cpu = pod.limit("cpu")
        if 0 < cpu < self._cores:
            yield from ("--cpus", str(cpu))
        if memory := int(pod.limit("memory")):
            yield from ("--memory", str(memory), "--memory-swap", str(memory))
        if devices := self._visible_gpus[pod.name]:
            yield from ("--gpus", f'"device={",".join(devices)}"')

    def _mounts(self, pod: Pod) -> Iterator[str]:
        volumes = _volumes(pod)
        for mount in pod.container.get("volumeMounts", []):
            volume, path = volumes.get(mount["name"], {}), mount["mountPath"]
            suffix = ":ro" if mount.get("readOnly") else ""
            if "subPath" in mount:
                continue
            if "hostPath" in volume:
                yield from ("--volume", f"{volume['hostPath']['path']}:{path}{suffix}")
            elif "persistentVolumeClaim" in volume:
                yield from ("--volume", f"{volume['persistentVolumeClaim']['claimName']}:{path}{suffix}")
            elif "emptyDir" in volume and volume["emptyDir"].get("medium") == "Memory":
                size: Any = volume["emptyDir"].get("sizeLimit")
                limit = f",tmpfs-size={int(quantity(size))}" if size else ""
                yield from ("--mount", f"type=tmpfs,destination={path},tmpfs-mode=1777{limit}")
            elif "emptyDir" in volume:
                yield from ("--volume", f"{self._scratch(pod, mount['name'])}:{path}:nocopy")
            elif self._job.files(volume) is not None:
                yield from ("--volume", f"{self._scratch(pod, mount['name'])}:{path}:ro,nocopy")

    def _scratch(self, pod: Pod, volume: str) -> str:
        return f"{pod.name}-{volume}-{self._run}"

    async def _make_volumes(self, pod: Pod) -> None:
        """Make the pod's volumes, each writable by every user, as Kubernetes makes an emptyDir; with its files."""
        named: dict[str, Mapping[str, str]] = {}
        for name, volume in _volumes(pod).items():
            if "persistentVolumeClaim" in volume:
                named[volume["persistentVolumeClaim"]["claimName"]] = {}
                continue
            files = self._job.files(volume)
            if "emptyDir" in volume and volume["emptyDir"].get("medium") != "Memory":
                files = {}
            if files is not None:
                named[scratch := self._scratch(pod, name)] = files
                await _docker("volume", "rm", "--force", scratch)  # that of an earlier pod of this name
                await _docker("volume", "create", "--label", self._label, scratch)
        if not named:
            return
        # Docker changes the mode of a folder that it unpacks: into a container that never runs, so that no image
        # needs a tool for it.
        mounts = [part for i, name in enumerate(named) for part in ("--volume", f"{name}:/volumes/{i}")]
        helper = await _docker("container", "create", "--label", self._label, *mounts, self._image_of(pod), "none")
        await _docker("container", "cp", "-", f"{helper}:/volumes", input=_folders(named.values()))
        await _docker("container", "rm", helper)

    def _image_of(self, pod: Pod) -> str:
        return self._image or str(pod.container["image"])


def _volumes(pod: Pod) -> dict[str, Mapping[str, Any]]:
    return {volume["name"]: volume for volume in pod.spec.get("volumes", [])}


def _security(context: Mapping[str, Any]) -> Iterator[str]:
    user, group = context.get("runAsUser"), context.get("runAsGroup")
    if user is not None or group is not None:
        yield from ("--user", f"{user if user is not None else 0}" + (f":{group}" if group is not None else ""))
    for extra in [*context.get("supplementalGroups", []), *([context["fsGroup"]] if "fsGroup" in context else [])]:
        yield from ("--group-add", str(extra))
    if context.get("readOnlyRootFilesystem"):
        yield "--read-only"
    if context.get("privileged"):
        yield "--privileged"
    if context.get("allowPrivilegeEscalation") is False:
        yield from ("--security-opt", "no-new-privileges")
    for change in ("add", "drop"):
        for capability in context.get("capabilities", {}).get(change, []):
            yield from (f"--cap-{change}", capability)


def _folders(contents: Iterable[Mapping[str, str]]) -> bytes:
    """Folders 0, 1, and so on with these files, which every user may read, and write where there are none."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for i, files in enumerate(contents):
            folder = tarfile.TarInfo(str(i))
            folder.type, folder.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(folder)
            for name, text in files.items():
                file = tarfile.TarInfo(f"{i}/{name}")
                file.size = len(data := text.encode())
                tar.addfile(file, io.BytesIO(data))
    return archive.getvalue()


async def _docker(*arguments: str, input: bytes | None = None) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            "docker", *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
    except FileNotFoundError:
        raise EngineError("docker: no such command on PATH") from None
    try:
        out, err = await process.communicate(input or b"")
    except asyncio.CancelledError:
        process.kill()
        raise
    if process.returncode != 0:
        lines = err.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise EngineError(f"docker {' '.join(arguments[:2])}: {lines[0]}")
    return out.decode().strip()
