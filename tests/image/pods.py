"""A container of the image under test, seen as a pod that ends."""

import io
import json
import os
import tarfile
from dataclasses import dataclass
from typing import Any, Protocol

from testcontainers.core.container import DockerContainer

IMAGE = os.environ.get("TORCHTALLY_IMAGE", "torchtally:cpu")
CUDA = IMAGE.endswith("cuda")


class Start(Protocol):
    """Starts a container with this command; keywords go to DockerContainer, and on to the engine."""

    def __call__(self, *command: str, tmpfs: tuple[str, ...] = (), **keywords: Any) -> "Pod": ...


@dataclass
class Pod:
    container: DockerContainer

    def wait(self, seconds: int = 300) -> int:
        """The exit status, once the container has ended."""
        return int(self.container.get_wrapped_container().wait(timeout=seconds)["StatusCode"])

    @property
    def stdout(self) -> str:
        return self.container.get_logs()[0].decode()

    @property
    def stderr(self) -> str:
        return self.container.get_logs()[1].decode()

    @property
    def tallies(self) -> list[dict[str, Any]]:
        """The lines of phases; that of the whole run is left out."""
        lines = [line for line in self.stdout.splitlines() if line.startswith("TORCHTALLY ")]
        found = [json.loads(line.removeprefix("TORCHTALLY ")) for line in lines]
        return [line for line in found if line["phase"] != "all"]

    def output(self) -> dict[str, bytes]:
        """The files in /output."""
        chunks, _ = self.container.get_wrapped_container().get_archive("/output")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            files = [(entry.name, archive.extractfile(entry)) for entry in archive]
            return {name.removeprefix("output/"): file.read() for name, file in files if file}
