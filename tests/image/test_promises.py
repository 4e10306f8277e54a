"""What the image promises to whoever deploys it: who it runs as, what is in it, what it is called."""

import re
from typing import Any

import pytest
from pods import CUDA, Start

pytestmark = pytest.mark.engine


def test_entry_point_without_arguments_is_the_help(start: Start) -> None:
    pod = start()
    assert pod.wait() == 0
    assert pod.stdout.startswith("usage: torchtally COMMAND")


def test_labels(image: dict[str, Any], start: Start) -> None:
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in image["Labels"].items()}
    assert labels["title"] == "torchtally"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["source"].startswith("https://")
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["revision"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]+(Z|[+-]\d\d:\d\d)", labels["created"])
    assert {"description", "base.name"} <= labels.keys()

    pod = start("--version")
    assert pod.wait() == 0
    assert pod.stdout.strip() == labels["version"]


def test_large_tensors_are_in_huge_pages(image: dict[str, Any]) -> None:
    assert "GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in image["Env"]


def test_is_not_root(start: Start) -> None:
    pod = start("run", "--", "id")
    assert pod.wait() == 0
    assert re.match(r"uid=1000\S* gid=0\S* groups=0\S*$", pod.stdout)


def test_any_uid_of_group_0_has_its_folders_and_a_name(start: Start) -> None:
    program = "import os, pathlib; assert os.getuid() == 54321; import getpass; print(getpass.getuser())"
    program += "\nfor folder in '~', '/cache', '/output', '/data': pathlib.Path(folder, 'new').expanduser().touch()"
    pod = start("run", "--", "python", "-c", program, user="54321:0")
    assert pod.wait() == 0, pod.stderr
    assert pod.stdout.strip() == "torchtally"


def test_pid_1_is_an_init(start: Start) -> None:
    pod = start("run", "--", "cat", "/proc/1/comm")
    assert pod.wait() == 0
    assert pod.stdout.strip() == "tini"


def test_what_nccl_opens_for_rdma_is_there_with_nccl_alone(start: Start) -> None:
    pod = start("run", "--", "python", "-c", "import ctypes; ctypes.CDLL('libibverbs.so.1')")
    assert (pod.wait() == 0) == CUDA, pod.stderr


def test_torch_finds_all_libraries_but_the_drivers(start: Start) -> None:
    pod = start("-c", "ldd /opt/torchtally/venv/lib/python3*/site-packages/torch/lib/*.so", entrypoint="sh")
    assert pod.wait() == 0
    assert "libtorch_cpu.so => /opt/torchtally" in pod.stdout
    assert set(re.findall(r"(\S+) => not found", pod.stdout)) <= {"libcuda.so.1"}


def test_torchvision_and_its_operators_fit_torch(start: Start) -> None:
    program = "import torch; from torchvision import datasets; from torchvision.ops import nms"
    program += "; boxes = torch.ones(2, 4).cumsum(1); print(nms(boxes, torch.tensor([0.5, 0.9]), 0.5).tolist())"
    pod = start("run", "--", "python", "-c", program)
    assert pod.wait() == 0, pod.stderr
    assert pod.stdout.splitlines()[-1] == "[1]"


LOADS = "from torch.utils.data import DataLoader; print(len(list(DataLoader(range(8), batch_size=2))))"


@pytest.mark.parametrize(
    "command",
    [("python", "-c", LOADS), ("sh", "-c", f'python -c "{LOADS}"'), ("torchtally", "run", "--", "python", "-c", LOADS)],
    ids=["python", "shell", "entry-point"],
)
def test_a_program_is_observed_however_it_is_started(command: tuple[str, ...], start: Start) -> None:
    program, *arguments = command
    pod = start(*arguments, entrypoint=program)
    assert pod.wait() == 0, pod.stderr
    assert pod.stdout == "4\n"
    (line,) = (line for line in pod.stderr.splitlines() if line.startswith("TORCHTALLY-OBSERVED "))
    assert '"batches":4,' in line and '"samples":8,' in line
    assert ("observed: 1 rank, 1 pass" in pod.stderr) == (program == "torchtally")  # which judges what it has started


def test_a_program_is_not_observed_with_never(start: Start) -> None:
    pod = start("-c", LOADS, entrypoint="python", env={"TORCHTALLY_OBSERVE": "never"})
    assert pod.wait() == 0, pod.stderr
    assert (pod.stdout, pod.stderr) == ("4\n", "")


def test_only_the_cuda_image_speaks_to_nvidias_runtime(image: dict[str, Any]) -> None:
    environment = dict(line.split("=", 1) for line in image["Env"])
    nvidia = {key: value for key, value in environment.items() if key.startswith("NVIDIA_")}
    expected = {"NVIDIA_VISIBLE_DEVICES": "void", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    assert nvidia == (expected if CUDA else {})


def test_what_built_it_stayed_behind(start: Start) -> None:
    script = "cd /opt/torchtally/venv/lib/python3*/site-packages/torch/bin && find . -type f"
    script += "; for tool in pip hatchling gcc; do command -v $tool; done; python -c 'import pip'"
    pod = start("-c", script, entrypoint="sh")
    assert pod.wait() == 1
    assert pod.stdout == "./torch_shm_manager\n"
    assert "No module named 'pip'" in pod.stderr


def test_every_module_is_compiled(start: Start) -> None:
    """Python says from which file each code object came: none may be a source under the virtual environment."""
    pod = start("-v", "-c", "import torchtally.commands.train, torch.distributed.run", entrypoint="python")
    assert pod.wait() == 0
    files = re.findall(r"code object from '?(/opt/torchtally/venv/[^'\n]*)", pod.stderr)
    assert any("/torch/" in file for file in files)
    assert [file for file in files if not file.endswith(".pyc")] == []
