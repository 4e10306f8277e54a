"""Whole runs as a pod makes them: the entry point, torchrun's agent, real ranks, real data, exit codes and files."""

import hashlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import clean_log
import jsonschema
import proofs
import pytest
import ranks
import torch
from called import verified
from commands import BATCHES, FEW, HERE, QUICK, alone, last_line, lines, pods

IMAGE = "ghcr.io/me/torchtally:1.2.3-cpu"
SCHEMA = json.loads((HERE.parents[1] / "docs/reference/statement-v1.schema.json").read_text())
FAULTY = ["run", "--", sys.executable, str(HERE / "faulty.py")]
FEW_STEPS = [*QUICK, "--batch-size", "20"]  # of the 90 samples of FEW
BFLOAT16 = ["--all-reduce", "bfloat16"]


def assert_refused(ended: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One sentence, exit code 2, no traceback."""
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout
    for part in parts:
        assert part in ended.stderr


@pytest.mark.cold
def test_two_pods_prove_their_shards_and_rank_0_alone_writes(environment: dict[str, str], tmp_path: Path) -> None:
    environment |= {"TORCHTALLY_IMAGE": IMAGE, "TORCHTALLY_CHART": "1.2.3"}
    each = [{"TORCHTALLY_OUTPUT": str(tmp_path / name)} for name in ("master", "worker")]
    (tmp_path / "master").mkdir()
    (tmp_path / "master" / ".model.pt.u3k_9x2a").write_text("what a killed process has left")
    ended = pods(2, environment, QUICK, each)
    assert [pod.returncode for pod in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    for pod in ended:
        clean_log.assert_clean(pod.stdout + pod.stderr)
    found = {(line["phase"], line["rank"]): line for pod in ended for line in lines(pod.stdout)}
    assert {key: line["consumed"] for key, line in found.items()} == {
        ("train", 0): 30000,
        ("train", 1): 30000,
        ("train", "all"): 60000,
        ("test", 0): 5000,
        ("test", 1): 5000,
        ("test", "all"): 10000,
    }
    assert found["train", 1]["pod"] == "demo-worker-0"
    assert len({line["run"] for line in found.values()}) == 1
    (began,) = {line["began"] for line in found.values()}
    assert 0 < time.time() - began / 1000 < 3600 and last_line(ended[0].stdout)["began"] == began
    assert "✓ every sample exactly once" in ended[0].stdout
    assert not (tmp_path / "worker").exists()
    model, document = tmp_path / "master" / "model.pt", tmp_path / "master" / "proof.json"
    hashed = hashlib.sha256(model.read_bytes()).hexdigest()
    proof, last = proofs.predicate(document), last_line(ended[0].stdout)
    assert proof.holds
    assert proof.epochs[0]["tested"] == 10000
    assert (last["model"], last["discarded"], last["worlds"]) == (f"sha256:{hashed}", 0, [[1, 0, 2]])
    every = [found[phase, rank] for phase in ("train", "test") for rank in (0, 1, "all")]
    assert proofs.lines(document) == [*every, last]
    jsonschema.validate(json.loads(document.read_bytes()), SCHEMA)
    saved = max((tmp_path / "master/checkpoints").glob("*.checkpoint"))
    assert proofs.read(document).subjects == {
        "model.pt": hashed,
        f"checkpoints/{saved.name}": hashlib.sha256(saved.read_bytes()).hexdigest(),
    }
    assert (proof.checkpoint, proof.image, proof.chart) == (f"checkpoints/{saved.name}", IMAGE, "1.2.3")
    # The proof is as good as the logs of all pods.
    judged = verified("-", log=ended[0].stdout + ended[1].stdout)
    assert (judged.returncode, verified(document).stdout) == (0, judged.stdout)
    assert sorted(path.name for path in model.parent.iterdir()) == ["checkpoints", "model.pt", "proof.json", "run.json"]
    weights = torch.load(model, weights_only=True)
    assert [tuple(value.shape) for value in weights.values()] == [
        (16, 784),
        (16,),
        (16, 16),
        (16,),
        (10, 16),
        (10,),
    ]


def test_a_complete_training_goes_on_to_more_epochs_and_one_proof_covers_both(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """With the weights of a training that has made all of them at once."""
    two = {**environment, "PET_NPROC_PER_NODE": "2"}
    first, grown = alone(two, FEW_STEPS, FEW), alone(two, [*FEW_STEPS, "--epochs", "3"], FEW)
    assert (first.returncode, grown.returncode) == (0, 0), grown.stderr
    last = last_line(grown.stdout)
    assert (last["run"], last["plan"]) == (last_line(first.stdout)["run"], {"train": 3, "test": 3})
    assert last["worlds"] == [[1, 0, 2]]
    whole = alone({**two, "TORCHTALLY_OUTPUT": str(tmp_path / "whole")}, [*FEW_STEPS, "--epochs", "3"], FEW)
    assert last["model"] == last_line(whole.stdout)["model"]
    judged = verified("-", log=first.stdout + grown.stdout)
    assert judged.returncode == 0 and "2 ranks, train 3 epochs, test 3 epochs" in judged.stdout, judged.stdout
    assert verified("-", log=grown.stdout).returncode == 0
    # The proof has the lines of all ranks together of the first attempt, and all lines of the second.
    archived = verified(tmp_path / "output/proof.json")
    assert archived.returncode == 0 and archived.stdout.splitlines()[-1] == judged.stdout.splitlines()[-1]
    together = [line for line in lines(first.stdout) if line["rank"] == "all"]
    every = [*together, *lines(grown.stdout), last]
    assert sorted(proofs.lines(tmp_path / "output/proof.json"), key=str) == sorted(every, key=str)
    plans = "its plan is {'train': 3, 'test': 3}, and now it is {'train': 1, 'test': 1}"
    assert_refused(alone(two, FEW_STEPS, FEW), plans, "continue as before")


def test_a_complete_run_is_told_again_and_not_trained_again(environment: dict[str, str], tmp_path: Path) -> None:
    first, second = alone(environment, FEW_STEPS, FEW), alone(environment, FEW_STEPS, FEW)
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert torch.cuda.is_available() or "processes: 1 (no GPU, so one process" in first.stderr
    assert f"in {tmp_path / 'output'} is complete; another training needs another --output" in second.stderr
    assert (lines(second.stdout), last_line(second.stdout)) == ([], last_line(first.stdout))
    assert "loss" not in second.stdout
    refused = alone(environment, [*FEW_STEPS, "--seed", "9"], FEW)
    assert_refused(refused, "is of another run: its seed is 0, and now it is 9; continue as before", "output folder")


def test_a_master_that_is_started_again_after_the_end_waits_for_nobody(
    environment: dict[str, str], tmp_path: Path
) -> None:
    first = pods(2, environment, FEW_STEPS, entry=FEW)
    assert [pod.returncode for pod in first] == [0, 0], first[0].stderr
    # Its workers have succeeded, and never come back.
    master = {"PET_NNODES": "2", "WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}
    again = alone({**environment, **master, "MASTER_PORT": str(ranks.free_port())}, FEW_STEPS, FEW)
    assert again.returncode == 0, again.stderr
    assert last_line(again.stdout) == last_line(first[0].stdout)
    # Or they were started again, too, and hear it.
    both = pods(2, environment, FEW_STEPS, entry=FEW)
    assert [pod.returncode for pod in both] == [0, 0], both[1].stderr
    assert "the run is complete" in both[1].stderr
    # A model that is not the one of the proof is made again, with the others.
    (tmp_path / "output/model.pt").write_bytes(b"")
    second = pods(2, environment, FEW_STEPS, entry=FEW)
    assert [pod.returncode for pod in second] == [0, 0], second[0].stderr
    before, after = (last_line(each[0].stdout) for each in (first, second))
    assert {**after, "attempt": 0, "began": before["began"]} == before


def test_pods_that_differ_and_one_without_data_end_all(environment: dict[str, str], tmp_path: Path) -> None:
    script = (
        "import os, sys; from torchtally.commands import train; from torchtally.pod import failure\n"
        "sys.argv[1:] = ['fashion-mnist', '--seed', os.environ['SEED']]; failure.exit_rank(train.main())"
    )
    for pod in pods(2, environment, ["run", "--", sys.executable, "-c", script], [{"SEED": "4"}, {"SEED": "7"}]):
        assert_refused(pod, "rank 1 (demo-worker-0) has seed 7 and rank 0 (demo-master-0) has 4")
        assert not lines(pod.stdout)
    for pod in pods(2, environment, QUICK, [{}, {"TORCHTALLY_DATA": str(tmp_path)}]):
        assert_refused(pod, "rank 1 (demo-worker-0)", str(tmp_path), "train-images-idx3-ubyte.gz does not exist")


@pytest.mark.nightly  # what is summed in which type, test_ddp.py tells by day
def test_gradients_in_bfloat16_between_pods_alone_and_the_model_is_about_as_good(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """30 steps from the same weights over the same batches. Within 3 points: 4 standard errors of such an accuracy."""
    command = [*BATCHES, "--lr", "0.1", "--hidden", "128"]
    found = {}
    for name, count, more in (("float32", 2, []), ("pods", 2, BFLOAT16), ("one pod", 1, BFLOAT16)):
        own = {"TORCHTALLY_OUTPUT": str(tmp_path / name), "PET_NPROC_PER_NODE": str(2 // count), "WORLD_SIZE": "2"}
        ended = pods(count, environment, [*command, *more], [own] * count)
        assert [pod.returncode for pod in ended] == [0] * count, ended[0].stderr
        assert all(line["lost"] == line["duplicated"] == 0 for pod in ended for line in lines(pod.stdout))
        proof = tmp_path / name / "proof.json"
        found[name] = proofs.model(proof), proofs.predicate(proof).epochs[0]["correct"] / 10000
    assert found["one pod"] == found["float32"] != found["pods"]
    assert found["float32"][1] > 0.5
    assert abs(found["pods"][1] - found["float32"][1]) < 0.03
    refused = alone({**environment, "TORCHTALLY_OUTPUT": str(tmp_path / "pods")}, command)
    assert_refused(refused, 'of another training: its option all_reduce is "bfloat16" and now it is "float32"')


def test_a_failed_proof_ends_every_pod_with_3_and_writes_no_model(environment: dict[str, str], tmp_path: Path) -> None:
    command = [*FAULTY, "rank_local_shuffle", *QUICK[1:]]
    for pod in pods(2, environment, command):
        assert pod.returncode == 3, pod.stderr
        assert "train epoch 1 is not proved: of 60000 samples" in pod.stderr
        assert "Traceback" not in pod.stderr
        own = next(line for line in lines(pod.stdout) if line["rank"] != "all")
        assert own["consumed"] == own["expected"] == 30000
        assert own["lost"] > 0
    assert {path.name for path in (tmp_path / "output").iterdir()} == {"checkpoints", "run.json"}


def test_a_gpu_that_was_asked_for_is_never_replaced_by_the_cpu(environment: dict[str, str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for asked in ({"TORCHTALLY_DEVICE": "cuda"}, {"NVIDIA_VISIBLE_DEVICES": "all"}):
        ended = alone({**environment, **asked}, QUICK)
        assert_refused(ended, "a GPU is requested and cannot be used", f"PyTorch {torch.__version__}")
        assert not lines(ended.stdout)


def test_an_output_folder_that_cannot_be_written_is_named_before_training(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "output").write_text("a file where a folder should be")
    ended = alone(environment, QUICK)
    assert_refused(ended, str(tmp_path / "output"), "--output")
    assert not lines(ended.stdout)


def test_ranks_connect_to_the_address_that_has_answered_and_ask_no_dns(environment: dict[str, str]) -> None:
    name = dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), "127.1")  # which is 127.0.0.1, written otherwise
    script = "import os; print(os.environ['MASTER_ADDR'])"
    ended = pods(2, environment, ["run", "--", sys.executable, "-c", script], [name, name])
    assert [pod.stdout for pod in ended] == ["127.1\n", "127.0.0.1\n"]


def test_a_rank_whose_peer_is_killed_ends_with_a_code_that_is_retried(environment: dict[str, str]) -> None:
    script = (
        "import os, signal, sys; from torchtally.commands import train\n"
        "from torchtally.pod import failure; from torchtally.training.steps import Steps\n"
        "whole = Steps.__iter__\n"
        "def killed(steps):\n"
        "    for step, batch in enumerate(whole(steps)):\n"
        "        if os.environ['RANK'] == '1' and step == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        yield batch\n"
        "Steps.__iter__ = killed\n"
        "sys.argv[1:] = ['fashion-mnist', '--epochs', '1', '--all-reduce', 'bfloat16']; failure.exit_rank(train.main())"
    )
    ended = pods(2, environment, ["run", "--", sys.executable, "-c", script])
    assert [pod.returncode for pod in ended] == [203, 137], ended[0].stderr
    assert "another rank went away" in ended[0].stderr
    assert "Traceback" not in ended[0].stderr


def test_a_port_in_use_is_named(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "1", "RANK": "0", "PET_NNODES": "1"}
        ended = alone({**environment, **job}, ["run", "--", "true"])
    assert ended.returncode == 203
    assert f"the rendezvous at 127.0.0.1:{port} failed" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["fashion-mnist", "--epochs", "0"], "--epochs: '0' must be a whole number from 1"),
        (["fashion-mnist", "--lr", "nan"], "--lr: 'nan' must be a number above 0"),
        (["imagenet"], "fashion-mnist"),
        (["--", "no-such-program-at-all"], "no-such-program-at-all"),
    ],
)
def test_a_wrong_command_is_named_before_anything_starts(
    environment: dict[str, str], command: list[str], named: str
) -> None:
    assert_refused(alone(environment, ["run", *command]), named)
