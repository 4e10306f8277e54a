"""The Keras task: its model follows torch's modes, ranks agree on its statistics, and Keras itself takes it up."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import clean_log
import launched
import numpy
import pytest
import ranks
import torch
import torch.distributed as dist
import toy
from commands import FEW, alone
from interrupted import FACTS, Interrupted, Interrupting, outcome
from torch.distributed.distributed_c10d import Store

from torchtally import Account
from torchtally.accounting.order.sampler import Sampler
from torchtally.distributed import running_stats
from torchtally.errors import Refused
from torchtally.proof.shards import Shard
from torchtally.tasks.keras_mnist import task as keras_mnist
from torchtally.tasks.keras_mnist.options import Options
from torchtally.training import artifacts
from torchtally.training.loop import Loop
from torchtally.training.steps import Steps
from torchtally.training.task import Samples

FIT = Path(__file__).parents[3] / "examples" / "keras_fit.py"
OPTIONS = Options(epochs=2, batch_size=8, seed=3)
N = 55  # drop_last leaves one of them out: 3 steps of 16, and one of 6


def digits(n: int, seed: int = 1) -> Samples:
    """Noise, brighter for higher labels."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (n,), generator=random)
    pixels = torch.rand(n, 28, 28, generator=random) * (labels + 1).view(-1, 1, 1) * 25.5
    return Samples(pixels.to(torch.uint8), labels)


def fit(n: int, options: Options, saving: toy.Saving) -> toy.Fitted:
    return toy.train(keras_mnist.TASK, options, digits(n), digits(31, 2), saving, FACTS)


def undisturbed(n: int, options: Options) -> toy.Fitted:
    with toy.saving_nowhere() as saving:
        return fit(n, options, saving)


def interrupting(loop: Loop, account: Account, folder: Path) -> Interrupting:
    """After its second step, which a checkpoint does not hold."""
    checkpoints = Interrupting(account, folder, toy.objects(loop), keep=2, every=1e9)
    checkpoints.interruption = 1, 1
    return checkpoints


def moved(rank: int, world: int) -> dict[str, Any]:
    """Statistics of the first BatchNormalization after a single step, and what its definition makes of all samples."""
    options = dataclasses.replace(OPTIONS, epochs=1)
    fitted = undisturbed(16, options)
    layers = keras_mnist.network(options.seed).layers
    out = layers[2](layers[1](keras_mnist.inputs(digits(16).inputs))).detach()
    shard = Shard(n=16, rank=rank, world=world, contract="drop_last", order="feistel-1", seed=options.seed)
    halves = torch.from_numpy(shard.indices())
    variances = out[halves].var(dim=(0, 1, 2), correction=0)
    dist.all_reduce(variances)
    found = dict(fitted.model.named_parameters())
    names = [
        next(each for each in found if each.endswith(f"batch_normalization/{end}"))
        for end in ("moving_mean", "moving_variance")
    ]
    expected = (0.1 * out.mean(dim=(0, 1, 2)), 0.9 + 0.1 * variances / world)
    return {"found": [found[name].tolist() for name in names], "expected": [each.tolist() for each in expected]}


def masked(rank: int, world: int) -> list[Any]:
    """Logits of one batch, the same on all ranks, in a step, in that step again, and in the next one."""
    sampler = Sampler(N, batch_size=8, rank=rank, world=world, contract="drop_last")
    model = keras_mnist.model(OPTIONS)
    found = []
    for step in (0, 0, 1):
        sampler.choose(1, 0, step)
        next(iter(Steps(sampler, digits(N))))
        found.append(model(keras_mnist.inputs(digits(8).inputs)).tolist())
    return found


def interrupted(rank: int, world: int, folder: Path) -> dict[str, Any]:
    """The outcome of a training that is killed after its second step, which a checkpoint does not hold."""
    with pytest.raises(Interrupted):
        fit(N, OPTIONS, lambda loop, account: interrupting(loop, account, folder))
    return outcome(fit(N, OPTIONS, toy.saving_to(folder)))


def unaveraged(rank: int, world: int, folder: Path) -> list[str]:
    """What ends a training whose ranks do not agree, at the end of an epoch and within one."""
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_stats, "average", lambda own: None)
        for saving in (toy.saving_to(folder), lambda loop, account: interrupting(loop, account, folder / "other")):
            with pytest.raises(Refused) as raised:
                fit(N, OPTIONS, saving)
            said.append(str(raised.value))
    return said


def everything(rank: int, world: int, store: Store, folder: Path) -> dict[str, Any]:
    """All that takes two ranks with Keras, which is slow to import."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    with toy.proved() as phases:
        fitted = undisturbed(N, OPTIONS)
    return {
        "phases": phases,
        "rate": fitted.optimizer.param_groups[0]["lr"],
        "undisturbed": outcome(fitted),
        "interrupted": interrupted(rank, world, folder),
        "moved": moved(rank, world),
        "masked": masked(rank, world),
        "unaveraged": unaveraged(rank, world, folder / "none"),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    results = ranks.run(2, everything, tmp_path_factory.mktemp("keras") / "checkpoints")
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def test_the_contract_is_that_of_batch_norm_and_all_is_proved(found: list[dict[str, Any]]) -> None:
    for result in found:
        together = [lines[-1] for lines in result["phases"]]
        assert [(line["phase"], line["contract"], line["consumed"]) for line in together] == [
            ("train", "drop_last", 54),
            ("test", "exact", 31),
        ] * 2
        assert all(line["lost"] == line["duplicated"] == 0 for line in together)


def test_the_rate_falls_with_the_position(found: list[dict[str, Any]]) -> None:
    """The last step of the second of two epochs begins at 48 of 55 samples."""
    assert [result["rate"] for result in found] == [pytest.approx(OPTIONS.lr * (1 - 48 / 55) / 2)] * 2


def test_a_step_moves_the_statistics_by_the_batches_of_all_ranks(found: list[dict[str, Any]]) -> None:
    """By a single step alone: neither what comes before the first one nor the evaluation leaves a trace."""
    for result in found:
        for values, expected in zip(result["moved"]["found"], result["moved"]["expected"], strict=True):
            assert values == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_each_rank_draws_its_own_dropout_and_the_same_again(found: list[dict[str, Any]]) -> None:
    drawn = [result["masked"] for result in found]
    assert drawn[0][0] == drawn[0][1]
    assert drawn[1][0] == drawn[1][1]
    assert drawn[0][0] != drawn[0][2]
    assert drawn[0][0] != drawn[1][0]


def test_interrupted_ranks_end_with_the_same_bits(found: list[dict[str, Any]]) -> None:
    assert found[0]["undisturbed"]["hash"] == found[1]["undisturbed"]["hash"]
    for result in found:
        assert result["interrupted"] == result["undisturbed"]


def test_ranks_that_differ_save_nothing(found: list[dict[str, Any]]) -> None:
    for result in found:
        for said in result["unaveraged"]:
            assert said.startswith("checkpoints: ranks 0 and 1 have different values of model.network.")


# Whole runs.

# A Keras without torchtally.
PLAIN = """
import sys
import keras, numpy
*models, pixels, logits = sys.argv[1:]
found = [keras.saving.load_model(model).predict(numpy.load(pixels), verbose=0) for model in models]
assert not any(name.startswith("torchtally") for name in sys.modules)
numpy.save(logits, numpy.stack(found))
"""
UNSEEN = 301  # samples


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """A Python program as a command of torchtally."""
    return alone(environment, ["run", "--", sys.executable, *command])


@pytest.fixture(scope="module")
def environment(mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A pod of two ranks, whose home cannot be written."""
    own = {"TORCHTALLY_DATA": str(mnist), "MPLCONFIGDIR": str(tmp_path_factory.mktemp("matplotlib"))}
    return launched.environment(HOME="/proc", PET_NPROC_PER_NODE="2", **own)


@pytest.fixture(scope="module")
def trained(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of the task, by one process."""
    output = tmp_path_factory.mktemp("trained")
    own = {**environment, "PET_NPROC_PER_NODE": "1", "TORCHTALLY_OUTPUT": str(output)}
    ended = alone(own, ["run", "keras-mnist", "--epochs", "1"], FEW)
    assert ended.returncode == 0, ended.stderr
    clean_log.assert_clean(ended.stdout + ended.stderr)
    assert "the contract is drop_last: 0 of 90 samples are left out" in ended.stderr
    return output


@pytest.fixture(scope="module")
def fitted(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The output of the example, and what it said."""
    output = tmp_path_factory.mktemp("fitted")
    ended = run({**environment, "TORCHTALLY_OUTPUT": str(output)}, str(FIT), "--samples", str(UNSEEN))
    assert ended.returncode == 0, ended.stderr
    return output, ended.stdout


@pytest.fixture(scope="module")
def unseen(mnist: Path) -> Samples:
    samples = keras_mnist.load(mnist, mnist)[1]
    return Samples(keras_mnist.inputs(samples.inputs[:UNSEEN]), samples.labels[:UNSEEN])


@pytest.fixture(scope="module")
def predicted(
    trained: Path,
    fitted: tuple[Path, str],
    unseen: Samples,
    environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> torch.Tensor:
    """The logits that Keras itself makes of the digits with either output's model: (2, UNSEEN, 10)."""
    folder = tmp_path_factory.mktemp("predicted")
    pixels, logits = folder / "pixels.npy", folder / "logits.npy"
    numpy.save(pixels, unseen.inputs.numpy())
    files = (trained / "model.keras", fitted[0] / "model.keras", pixels, logits)
    command = [sys.executable, "-c", PLAIN, *map(str, files)]
    subprocess.run(command, env={**environment, "KERAS_BACKEND": "torch"}, check=True, timeout=240)
    return torch.from_numpy(numpy.load(logits))


def test_keras_itself_loads_the_model_and_predicts_the_same(
    trained: Path, unseen: Samples, predicted: torch.Tensor
) -> None:
    model = keras_mnist.model(Options())
    model.load_state_dict(torch.load(trained / "model.pt", weights_only=True))
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(unseen.inputs), predicted[0])


def test_a_run_without_its_keras_file_is_not_complete(trained: Path) -> None:
    chosen = Options(epochs=1)
    assert artifacts.is_complete("keras-mnist", chosen, keras_mnist.TASK.fingerprint, trained)
    (trained / "model.keras").rename(trained / "away")
    assert not artifacts.is_complete("keras-mnist", chosen, keras_mnist.TASK.fingerprint, trained)
    (trained / "away").rename(trained / "model.keras")


def test_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch, mnist: Path) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(Refused, match="KERAS_BACKEND=jax must be torch or unset"):
        keras_mnist.load(mnist, mnist)


def test_without_keras_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, mnist: Path) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(
        Refused, match=r"needs the Python package keras: pip install keras, or use an image with the extra `keras`"
    ):
        keras_mnist.load(mnist, mnist)


def test_the_example_accounts_for_what_keras_fit_takes(
    fitted: tuple[Path, str], unseen: Samples, predicted: torch.Tensor
) -> None:
    said = fitted[1]
    assert said.count("✓ no sample twice, 1 left out") == 2
    assert said.count("✓ every sample exactly once") == 2
    correct = int(said.partition("epoch 2: ")[2].split()[0])
    assert correct == int((predicted[1].argmax(dim=1) == unseen.labels).sum())


def test_what_keras_fit_leaves_is_not_proved(environment: dict[str, str]) -> None:
    """The example, with a fit that stops after its second step."""
    example = FIT.read_text()
    assert example.count("    def on_epoch_end(") == 1
    stop = "    def on_train_batch_end(self, batch, logs=None):\n        self.model.stop_training = batch == 1\n\n"
    broken = example.replace("    def on_epoch_end(", f"{stop}    def on_epoch_end(")
    ended = run({**environment, "PET_NPROC_PER_NODE": "1"}, "-c", broken, "--samples", "200")
    assert ended.returncode == 3, ended.stderr
    assert "train epoch 1 is not proved: of 200 samples that the contract drop_last names, 72 were" in ended.stderr
    assert "the loop left the epoch in step 2 of 4" in ended.stderr
