"""What an own loop with an account reports: to Prometheus, in the log, and as the pod's last word."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import launched
import pytest
import ranks
import torch
from accounts import run
from launched import LIMIT, until
from own_scripts import SCRIPTS
from scraping import scraped
from squares import Squares
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from torchtally.accounting.account import Account
from torchtally.accounting.run import reports

SCRIPT = SCRIPTS / "reported.py"
ENTRY = {
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port={port}", str(SCRIPT)],
    "torchtally run": ["-m", "torchtally.cli", "run", "--", sys.executable, str(SCRIPT)],
}


@contextmanager
def started(entry: str, epochs: int, **more: str) -> Iterator["subprocess.Popen[str]"]:
    command = [part.format(port=ranks.free_port()) for part in ENTRY[entry]]
    process = subprocess.Popen(
        [sys.executable, *command, str(epochs)],
        env=launched.environment(PET_NPROC_PER_NODE="2", HOSTNAME="pod-a", **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)


@pytest.mark.parametrize("entry", ENTRY)
def test_an_own_loop_is_watched_and_its_failure_is_the_pods_last_word(entry: str, tmp_path: Path) -> None:
    """Two epochs are scraped; the third loses samples."""
    port, message = ranks.free_port(), tmp_path / "message"
    message.touch()
    seen: dict[str, float] = {}
    more = {"TORCHTALLY_METRICS_PORT": str(port), "TORCHTALLY_TERMINATION_LOG": str(message)}
    with started(entry, 4, **more, WAIT_FOR=str(tmp_path / "go")) as process:

        def tested() -> bool:
            seen.update(scraped(port))
            return seen.get("torchtally_proofs_total,holds=true,phase=test", 0) == 2

        until("two epochs are tested", tested)
        (tmp_path / "go").touch()
        output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == (1 if entry == "torchrun" else 3), output
    assert seen["torchtally_samples_total"] == seen["torchtally_pod_samples_total"] == 100
    assert seen["torchtally_progress_ratio"] == 0.5
    assert "torchtally_last_checkpoint_timestamp_seconds" not in seen  # it saves none
    assert seen["torchtally_step_seconds_count"] == 2 * 4
    assert (seen["torchtally_epochs"], seen["torchtally_world_size"], seen["torchtally_attempt"]) == (4, 2, 0)
    assert seen["torchtally_epoch"] == 2
    assert 0 < seen["torchtally_train_loss"] < 10
    assert seen["torchtally_test_accuracy"] == 0.5
    assert seen["torchtally_samples_per_second"] > 0
    assert [name for name in seen if re.search(r"torchtally_run_info,data=line,.*task=line", name)]
    assert re.match(r"rank \d \(pod-a\): train epoch 3 is not proved: of 50 samples", message.read_text())


FAILS_ON_BOTH = """
import os, sys, time
from pathlib import Path
import torch
from torchtally.pod import failure

folder, rank, attempt = Path(sys.argv[1]), int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
message = folder / "message"

def wait(condition):
    while not condition():
        time.sleep(0.02)

wait(lambda: rank == 1 or f"rank 1 in attempt {attempt}" in message.read_text())
failure.record(RuntimeError(f"rank {rank} in attempt {attempt}"))  # as an Account does
(folder / f"{attempt}-{rank}").touch()
wait(lambda: len([*folder.glob(f"{attempt}-*")]) == 2)
sys.exit(1)
"""


def test_the_first_failure_of_an_attempt_stays_the_last_word(tmp_path: Path) -> None:
    """Rank 0 fails after rank 1 has said why, in each of two attempts."""
    (script := tmp_path / "script.py").write_text(FAILS_ON_BOTH)
    (message := tmp_path / "message").touch()
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={ranks.free_port()}"]
    ended = subprocess.run(
        [sys.executable, *torchrun, "--max-restarts=1", str(script), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOSTNAME": "pod-a", "TORCHTALLY_TERMINATION_LOG": str(message)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ended.returncode == 1
    assert message.read_text() == "rank 1 (pod-a) failed: RuntimeError: rank 1 in attempt 1", ended.stderr


def reports_often(numbers: dict[str, Any], plan: int) -> None:
    reports._LOG_SECONDS = reports._READ_SECONDS = 0.0
    with Account(task="t", plan={"train": plan, "fine-tune": 1}) as account:
        for phase in ("train", "fine-tune"):
            source = account.loader(Squares(9), phase, batch_size=2)
            for epoch in account.epochs() if phase == "train" else [1]:
                for batch in account.epoch(phase, epoch, source):
                    account.log(**numbers, step=batch.step)
                    account.commit()


def test_a_log_has_a_line_of_progress_now_and_then() -> None:
    first, second = run(2, reports_often, {"loss": 0.123456}, 2)
    assert [line for line in first["out"].splitlines() if ": step " in line] == [
        *(f"train epoch 1/2: step {step} of 3, loss 0.1235, step {step}" for step in (1, 2, 3)),
        *(f"train epoch 2/2: step {step} of 3, loss 0.1235, step {step}" for step in (1, 2, 3)),
        *(f"fine-tune epoch 1/1: step {step} of 3, loss 0.1235, step {step}" for step in (1, 2, 3)),
    ]
    assert ": step " not in second["out"]


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"loss": "0.5"}, "log(): loss must be a number, not a str"),
        ({"a b": 0.5}, "log(): the name 'a b' must have only letters"),
    ],
)
def test_what_is_no_number_is_refused_on_all_ranks(numbers: dict[str, Any], sentence: str) -> None:
    for each in run(2, reports_often, numbers, 1):
        assert each["code"] == 2
        assert sentence in each["err"]


def logs_a_norm(whole: bool) -> None:
    """FSDP has a part of each gradient on each rank."""
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    model(torch.ones(1, 4)).sum().backward()
    norm: Any = model.weight.grad.norm()  # type: ignore[union-attr]
    with Account(task="t", plan={"train": 1}) as account:
        for _ in account.epoch("train", 1, account.loader(Squares(8), "train", batch_size=2)):
            account.log(norm=norm.full_tensor() if whole else norm)
            account.commit()


@pytest.mark.parametrize("whole", [True, False])
def test_a_number_whose_parts_are_on_all_ranks_is_no_wait_for_them(whole: bool) -> None:
    for each in run(2, logs_a_norm, whole):
        assert each["code"] == (0 if whole else 2), each["err"]
        assert whole or "norm is a DTensor of which each rank has a part: pass norm.full_tensor()" in each["err"]


def asks(variables: dict[str, str]) -> None:
    os.environ |= variables
    with Account("t", epochs=1):
        pass


def test_a_wrong_request_is_refused_on_all_ranks() -> None:
    for each in run(2, asks, {"TORCHTALLY_METRICS_PORT": "http"}):
        assert each["code"] == 2
        assert "TORCHTALLY_METRICS_PORT='http' must be a whole number from 1 to 65535" in each["err"]
