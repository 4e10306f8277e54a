"""The task gpt: killed and resumed with any number of ranks, the same loss sharded or not, and what it refuses."""

import json
import math
from dataclasses import replace
from pathlib import Path

import clean_log
import pytest
import torch
from accounts import run, tallied
from safetensors.torch import load_file
from task_runs import ended, killed_and_resumed, reported, whole
from tokenizers import Tokenizer
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from torchtally import Account, events
from torchtally.errors import Refused
from torchtally.tasks.gpt import text, training
from torchtally.tasks.gpt.model import GPT
from torchtally.tasks.gpt.options import Options

SMALL = ("--width", "16", "--layers", "1", "--heads", "2", "--length", "16", "--vocabulary", "300", "--batch-size", "4")
TRAIN = ("run", "gpt", *SMALL, "--epochs", "2", "--accumulate", "2", "--save-seconds", "0.001")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that can be learned: squares and their sums, with a letter of two bytes."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("".join(f"{number}² = {number * number}\n" for number in range(400)))
    (folder / "b").mkdir()
    (folder / "b/b.txt").write_text("".join(f"{number} + 1 = {number + 1}\n" for number in range(200)))
    return folder


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return whole(data, folder, 2, *TRAIN), folder


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_killed_in_an_epoch_it_goes_on_where_its_weights_stand(
    world: int, data: Path, tmp_path: Path, undisturbed: tuple[str, Path]
) -> None:
    second = killed_and_resumed(data, tmp_path, (2, world), *TRAIN)
    printed, folder = undisturbed
    before, after = (tallied(each)[-1]["phases"] for each in (printed, second))
    assert after["train"]["consumed"] == before["train"]["consumed"] == 2 * before["train"]["n"]  # none is left out
    last, again = reported(printed, events.Epoch)[-1], reported(second, events.Epoch)[-1]
    if world == 2:
        assert (folder / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()
        assert (last.loss, last.test_loss) == (again.loss, again.test_loss)  # the sums of the epoch are saved, too
    else:  # batches have other sizes, but the weights are those that have learned
        assert again.loss < reported(printed, events.Epoch)[0].loss


def test_a_complete_run_is_told_again_and_not_trained_again(data: Path, undisturbed: tuple[str, Path]) -> None:
    printed, folder = undisturbed
    names = ("model.safetensors", "gpt.json", "tokenizer.json", "proof.json")
    before = [(folder / name).stat().st_mtime_ns for name in names]
    again = whole(data, folder, 2, *TRAIN)
    assert f"in {folder} is complete; another training needs another --output" in again
    assert (tallied(again), reported(again, events.Epoch)) == ([tallied(printed)[-1]], [])
    assert [(folder / name).stat().st_mtime_ns for name in names] == before
    refused = ended(2, data, folder, 2, *TRAIN, "--lr", "0.5")
    assert "is of another training: its option lr is 0.003 and now it is 0.5" in refused
    assert [(folder / name).stat().st_mtime_ns for name in names] == before


def test_it_learns_and_its_files_are_enough_to_use_it(data: Path, undisturbed: tuple[str, Path]) -> None:
    printed, folder = undisturbed
    clean_log.assert_clean(printed)
    epochs = reported(printed, events.Epoch)
    assert epochs[-1].loss < epochs[0].loss < math.log(300)
    configuration = json.loads((folder / "gpt.json").read_text())
    length = configuration.pop("length")
    model = GPT(**configuration)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("12² = 144\n").ids) == "12² = 144\n"

    # The exact loss of the whole test, in float32 and in one process, is what two ranks reported, in bfloat16.
    _, test = text.split(text.load(data, Path(f"{data}-cache"), 300), length)
    samples = torch.stack([test[index] for index in range(len(test))])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(samples[:, :-1]).flatten(0, 1), samples[:, 1:].flatten())
    assert epochs[-1].tested == samples[:, 1:].numel()
    assert math.isclose(loss.item(), epochs[-1].test_loss, rel_tol=0.01)


def test_no_token_sees_one_that_follows() -> None:
    model = GPT(vocabulary=50, width=16, layers=2, heads=2)
    tokens = torch.randint(0, 50, (1, 12))
    other = tokens.clone()
    other[0, 8:] = (other[0, 8:] + 1) % 50
    assert torch.equal(model(tokens)[:, :8], model(other)[:, :8])
    assert not torch.equal(model(tokens)[:, 8:], model(other)[:, 8:])


def test_windows_are_the_whole_text_but_for_its_end(data: Path, tmp_path: Path) -> None:
    found = text.load(data, tmp_path, 300)
    train, test = text.split(found, 16)
    together = [*(train[index] for index in range(len(train))), *(test[index] for index in range(len(test)))]
    assert torch.cat([each[:-1] for each in together]).tolist() == found.tokens[: 16 * len(together)].tolist()
    assert [each[-1] for each in together[:-1]] == [each[0] for each in together[1:]]
    assert (
        found.tokenizer.decode(found.tokens.tolist()) == (data / "a.txt").read_text() + (data / "b/b.txt").read_text()
    )
    with pytest.raises(IndexError):
        train[len(train)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--width", "18", "--heads", "2"), "--width 18 must be a multiple of 2 x --heads 2"),
        (("--length", "99999"), "tokens, too few for two samples of --length 99999"),
    ],
)
def test_what_cannot_be_trained_is_refused(options: tuple[str, ...], message: str, data: Path, tmp_path: Path) -> None:
    printed = ended(2, data, tmp_path, 2, "run", "gpt", "--vocabulary", "300", *options)
    assert message in printed
    assert "Traceback" not in printed


def test_other_data_than_text_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(Refused, match="must hold text files, and has no file"):
        text.load(folder, tmp_path, 300)
    (folder / "image.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(Refused, match=r"image\.png \(--data\) must be text in UTF-8"):
        text.load(folder, tmp_path, 300)
    assert not [path for path in (tmp_path / "gpt").iterdir() if path.is_dir()]  # nothing half made


def steps(data: str, cache: str, batch: int, accumulate: int) -> dict[str, list[float]]:
    """The weights after an epoch of plain steps, whose size follows from that of the gradients as Adam's does not."""
    training._optimizer = lambda model, options: torch.optim.SGD(model.parameters(), lr=0.5)
    options = Options(
        width=8, layers=1, heads=2, length=16, vocabulary=300, epochs=1, precision="float32", save_seconds=1e6
    )
    options = replace(options, batch_size=batch, accumulate=accumulate)
    found = text.load(Path(data), Path(cache), 300)
    found = replace(found, tokens=found.tokens[: 16 * 15 + 1])  # 14 windows to train with, so the last step has 2 of 6
    with Account(task="t", plan={"train": 1, "test": 1}) as account:
        trainer = training.Trainer(options, account, found, torch.device("cpu"), Path(cache, f"{batch}-{accumulate}"))
        trainer.train(1)
        trainer.test(1)
        whole = get_model_state_dict(trainer.model, options=StateDictOptions(full_state_dict=True))
        return {name: value.flatten().tolist() for name, value in whole.items()}


def test_ranks_and_accumulation_make_the_steps_of_one_process(data: Path, tmp_path: Path) -> None:
    alone, two, accumulated = (
        run(world, steps, str(data), str(tmp_path), batch, accumulate)[0]["result"]
        for world, batch, accumulate in ((1, 6, 1), (2, 3, 1), (2, 1, 3))
    )
    for name, values in alone.items():
        assert values == pytest.approx(two[name], abs=1e-5), name
        assert values == pytest.approx(accumulated[name], abs=1e-5), name
