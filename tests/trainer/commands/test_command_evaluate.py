"""`torchtally evaluate`: which model it takes, what it makes of it on any number of ranks, and what it refuses."""

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import launched
import proofs
import pytest
import torch
from called import verified
from commands import QUICK, alone

from torchtally import tasks
from torchtally.checkpoints import checkpoint_file
from torchtally.commands import evaluate
from torchtally.errors import Refused
from torchtally.training.weights import mismatch

ENTRY = f"import os; os.chdir(os.environ['WHERE']); {launched.ENTRY}"
SMALL = ["fashion-mnist", "--hidden", "16"]


@pytest.fixture(scope="module")
def environment(fashion_mnist: Path) -> dict[str, str]:
    return launched.environment(TORCHTALLY_DATA=str(fashion_mnist))


@pytest.fixture(scope="module")
def trained(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a training, with its model and checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    ended = alone({**environment, "TORCHTALLY_OUTPUT": str(folder)}, QUICK)
    assert ended.returncode == 0, ended.stderr
    return folder


def evaluated(
    environment: dict[str, str], folder: Path, count: int, *arguments: str, **more: str
) -> tuple[list[launched.Pod], list[str]]:
    """The ended pods and their logs. Each is in a folder of its own, and writes there."""
    with launched.job({**environment, "TORCHTALLY_OUTPUT": "output"}, folder, count) as job:
        pods = []
        for rank in range(count):
            (where := folder / str(rank)).mkdir(exist_ok=True)
            pods.append(job.start(rank, ["evaluate", *arguments], ENTRY, WHERE=str(where), **more))
        logs = [pod.rest() for pod in pods]
        return pods, logs


def test_three_pods_find_what_the_training_found_and_the_master_alone_has_the_model(
    environment: dict[str, str], trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "mine.pt").write_bytes((trained / "model.pt").read_bytes())
    pods, logs = evaluated(environment, tmp_path, 3, *SMALL, "--checkpoint", "mine.pt")
    assert [pod.wait() for pod in pods] == [0, 0, 0], pods[0].errors
    known = proofs.predicate(trained / "proof.json").epochs[0]
    found = json.loads((tmp_path / "0/output/evaluation.json").read_text())
    assert {name: found[name] for name in ("holds", "checkpoint", "model", "correct", "count")} == {
        "holds": True,
        "checkpoint": "mine.pt",
        "model": proofs.model(trained / "proof.json"),
        "correct": known["correct"],
        "count": 10000,
    }
    assert found["loss"] == pytest.approx(known["test_loss"], rel=1e-5)
    assert found["accuracy"] == known["correct"] / 10000
    assert f"test accuracy {found['accuracy']:.2%} ({found['correct']} of 10000)" in logs[0]
    assert not (tmp_path / "1/output").exists()
    # 10000 is no multiple of 3.
    for rank, share in enumerate([3334, 3333, 3333]):
        assert f'"rank":{rank},"world":3,"n":10000' in logs[rank]
        assert f'"expected":{share},"consumed":{share}' in logs[rank]
    judged = verified("-", log="".join(logs))
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert f"3 ranks, test 1 epoch, model {proofs.model(trained / 'proof.json')}" in judged.stdout


def test_another_model_ends_all_pods_with_one_sentence(
    environment: dict[str, str], trained: Path, tmp_path: Path
) -> None:
    pods, logs = evaluated(environment, tmp_path, 2, "fashion-mnist", "--checkpoint", str(trained))
    assert [pod.wait() for pod in pods] == [2, 2]
    for pod, log in zip(pods, logs, strict=True):
        assert (
            f"--checkpoint {trained}/model.pt is no model of fashion-mnist --hidden 512: its 1.weight has the shape "
            "(16, 784) and the model's has (512, 784)"
        ) in pod.message
        assert "Traceback" not in pod.errors
        assert "TORCHTALLY {" not in log


def test_a_folder_is_its_model_or_else_its_newest_whole_checkpoint(trained: Path, tmp_path: Path) -> None:
    found = evaluate.find(trained)
    assert found.path == trained / "model.pt"
    assert found.sha256 == f"sha256:{hashlib.sha256(found.path.read_bytes()).hexdigest()}"
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (last,) = (trained / "checkpoints").glob("epoch-00000002-*")
    (folder / last.name).write_bytes(last.read_bytes())
    (folder / checkpoint_file.file_name(3, 0)).write_bytes(last.read_bytes()[:-9])  # cut off
    half = folder / ".x.checkpoint.y"  # which a training writes just now
    half.touch()
    for path in (tmp_path, folder, folder / last.name):
        again = evaluate.find(path)
        assert (again.path, again.sha256) == (folder / last.name, None)
        assert all(torch.equal(value, again.weights[name]) for name, value in found.weights.items())
    assert half.exists()


class Evil:
    def __reduce__(self) -> Any:
        return print, ("this was run",)


@pytest.mark.parametrize(
    ("name", "contents", "sentence"),
    [
        ("absent", None, "absent cannot be read: No such file or directory"),
        ("epoch-00000001-position-0000000000000000000.checkpoint", b"PK", "checkpoint is cut off"),
        ("model.pt", b"no model", "model.pt must be a dictionary of tensors, written by torch.save"),
        ("model.pt", pickle.dumps(Evil(), protocol=2), "must be a dictionary of tensors"),
        ("nothing/here", b"", "nothing has neither model.pt nor an intact checkpoint: give a"),
    ],
    ids=["absent", "cut off", "text", "code", "a folder without"],
)
def test_what_is_no_model_is_named(
    name: str, contents: bytes | None, sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if contents is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(contents)
    with pytest.raises(Refused) as refused:
        evaluate.find(path if path.parent == tmp_path else path.parent)
    assert sentence in str(refused.value)
    assert "this was run" not in capfd.readouterr().out


def test_a_checkpoint_of_other_objects_names_them(tmp_path: Path) -> None:
    path = checkpoint_file.save(tmp_path, 1, 0, {"objects": {"net": {}, "optimizer": {}}}, keep=1)
    for each in (path, tmp_path):
        with pytest.raises(Refused, match=f"{path.name} has no object named model, but net, optimizer"):
            evaluate.find(each)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (["a list"], "it is no dictionary of tensors"),
        ({"epoch": 1}, "it is no dictionary of tensors"),
        ({"1.weight": torch.zeros(16, 784)}, "it has no 1.bias"),
    ],
)
def test_weights_of_another_model_are_named(weights: Any, sentence: str) -> None:
    expected = tasks.load("fashion-mnist").model(tasks.OPTIONS["fashion-mnist"](hidden=16)).state_dict()
    assert mismatch(weights, expected) == sentence
    assert mismatch(expected, expected) is None
    assert mismatch({**expected, "7.bias": torch.zeros(1)}, expected) == "it has 7.bias, and the model does not"
