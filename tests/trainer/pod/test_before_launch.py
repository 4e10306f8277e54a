"""What is refused, or warned of, because it would end the ranks without a sentence."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import launched
import pytest

from torchtally.errors import Refused
from torchtally.pod import before_launch

LAUNCHED = [
    ("torchrun --nproc-per-node 2 train.py --lr 1", "torchrun", "python train.py --lr 1"),
    ("/usr/bin/torchrun -m mine.train 'a b'", "torchrun", "python -m mine.train 'a b'"),
    ("python -m torch.distributed.launch --use-env train.py", "torch.distributed.launch", "python train.py"),
    ("python3.13 -u -m torch.distributed.run train.py", "torch.distributed.run", "python train.py"),
    ("accelerate launch --num_processes 2 train.py", "accelerate", "python train.py"),
    ("deepspeed train.py --deepspeed", "deepspeed", "python train.py --deepspeed"),
    ("env A=1 torchrun --no-python ./train", "torchrun", "PROGRAM"),
    ("timeout 3600 numactl --cpunodebind 0 torchrun train.py", "torchrun", "python train.py"),
    ("bash -ec 'cd /src && exec torchrun train.py | tee log'", "torchrun", "python train.py"),
    ("sh -c 'pip list\nA=1 accelerate launch \\\n  train.py; echo'", "accelerate", "python train.py"),
]


@pytest.mark.parametrize(("command", "launcher", "program"), LAUNCHED)
def test_a_launcher_is_refused_with_what_to_run_in_its_place(command: str, launcher: str, program: str) -> None:
    said = f"{launcher} starts processes itself, and so does torchtally: leave it out, torchtally run -- {program}"
    with pytest.raises(Refused) as refused:
        before_launch.check_command(shlex.split(command))
    assert str(refused.value) == f"{said} [T02]"


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --launcher torchrun",
        "python -m mine.torchrun torchrun",
        "bash train.sh torchrun",
        "./train torchrun",
        "accelerate config",
        "env A=torchrun python train.py torchrun",
        "bash -c 'echo torchrun; python train.py'",
        """sh -c 'python "'""",
    ],
)
def test_other_commands_are_left_alone(command: str) -> None:
    before_launch.check_command(shlex.split(command))


def pod(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    entry = [sys.executable, "-c", launched.ENTRY, "run", *command]
    return subprocess.run(entry, env=launched.environment(**variables), capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(("name", "value"), [("GLOO_SOCKET_IFNAME", "lo,eth77"), ("TP_SOCKET_IFNAME", "^lo")])
def test_an_interface_that_ends_ranks_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Refused, match=rf"{name}='{re.escape(value)}' must name interfaces that this pod has: lo"):
        before_launch.check_environment(None, own=False, gpus=False)


def test_a_variable_that_ends_ranks_ends_the_pod_before_they_start() -> None:
    variables = {"PET_NNODES": "1:2", "PET_RDZV_ENDPOINT": "etcd:2379", "PET_RDZV_BACKEND": "etcd"}
    found = pod("--", "echo", "begun", **variables, TORCHTALLY_RETRIES="7")
    assert found.returncode == 2
    assert "torchtally: PET_RDZV_BACKEND='etcd' must be one of c10d" in found.stderr
    assert "Traceback" not in found.stderr and "begun" not in found.stdout


def test_a_launcher_in_a_launcher_does_not_start() -> None:
    found = pod("--", "torchrun", "train.py", PET_NPROC_PER_NODE="2")
    assert (found.returncode, "leave it out, torchtally run -- python train.py" in found.stderr) == (2, True)


DETAIL = "TORCH_DISTRIBUTED_DEBUG=DETAIL ends DistributedDataParallel on CPUs with SIGSEGV"


def test_a_program_is_warned_of_a_setting_with_which_pytorch_crashes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = pod("--", "echo", "begun", TORCH_DISTRIBUTED_DEBUG="detail")
    assert (found.returncode, DETAIL in found.stderr) == (0, True)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    before_launch.check_environment(None, own=False, gpus=False)
    assert DETAIL not in capsys.readouterr().err


def test_a_task_trains_with_it(fashion_mnist: Path, tmp_path: Path) -> None:
    more = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCHTALLY_DATA": str(fashion_mnist), "PET_NPROC_PER_NODE": "2"}
    command = ["fashion-mnist", "--epochs", "1", "--hidden", "16", "--batch-size", "2000", "--output", str(tmp_path)]
    found = pod(*command, **more)
    assert found.returncode == 0, found.stderr
    assert f"{DETAIL}: INFO is used in its place" in found.stderr
