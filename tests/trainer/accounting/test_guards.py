"""What guards find that no tally shows: epochs that train nothing, weights that are put back. One can be off."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accounts import alone, assert_ends, in_turn, run, tallied, verified
from messages import plain
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

from torchtally import Account
from torchtally.accounting.guards.guards import GUARDS, switched_off
from torchtally.errors import Refused
from torchtally.verifier.conclusion import summary

N, EPOCHS = 24, 3
DOCS = Path(__file__).parents[3] / "docs"


class Training:
    """A small model, of which a test changes what it does."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.account: Account | None = None
        self.kept: Any = None
        self.last: Any = None

    def make(self) -> None:
        """Before the account is told of the optimizer."""

    def name(self, account: Account) -> None:
        account.optimizer(self.optimizer)

    def before_epoch(self, epoch: int) -> None:
        pass

    def before_step(self, epoch: int, step: int) -> None:
        pass

    def after_step(self, epoch: int, step: int) -> None:
        pass

    def after_epoch(self, epoch: int) -> None:
        pass

    def at_end(self, account: Account) -> None:
        pass

    def keep(self) -> None:
        self.kept = copy.deepcopy(self.model.state_dict())

    def put_back(self) -> None:
        self.model.load_state_dict(self.kept)

    def run(self) -> dict[str, Any] | None:
        self.make()
        generator = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(N, 4, generator=generator))
        self.wrapped: nn.Module = DistributedDataParallel(self.model) if dist.get_world_size() > 1 else self.model
        with Account("t", epochs=EPOCHS) as self.account:
            self.name(self.account)
            loader = self.account.loader(data, batch_size=4)
            for epoch in self.account.epochs():
                self.before_epoch(epoch)
                for step, (inputs,) in enumerate(loader, 1):
                    self.account.weigh(self.loss(inputs)).backward()
                    self.before_step(epoch, step)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.after_step(epoch, step)
                self.after_epoch(epoch)
            self.at_end(self.account)
        return self.account.last_line

    def loss(self, inputs: Tensor) -> Tensor:
        loss: Tensor = self.wrapped(inputs).square().mean()
        return loss


def runs(kind: type[Training]) -> Any:
    return kind().run()


# What the last line says of steps.


class LearnsNothingInTheSecond(Training):
    def before_epoch(self, epoch: int) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.0 if epoch == 2 else 0.01


class ClipsToNothing(Training):
    """As with a norm that was meant to be a value."""

    def make(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def before_step(self, epoch: int, step: int) -> None:
        if epoch == 2:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.0)


class RollsBackEachStep(Training):
    """As where a loss that is compared with itself never falls."""

    def before_step(self, epoch: int, step: int) -> None:
        self.keep()

    def after_step(self, epoch: int, step: int) -> None:
        if epoch == 2:
            self.put_back()


class StepsTheHeadAlone(Training):
    """The optimizer of the first layer is forgotten in the second epoch."""

    def make(self) -> None:
        self.first = torch.optim.AdamW(self.model[0].parameters(), lr=0.01)
        self.optimizer = torch.optim.AdamW(self.model[2].parameters(), lr=0.01)

    def name(self, account: Account) -> None:
        account.optimizer(self.optimizer)
        account.optimizer(self.first)

    def before_step(self, epoch: int, step: int) -> None:
        if epoch != 2:
            self.first.step()
        self.first.zero_grad()


class GoesOnWithEarlierWeights(Training):
    def before_epoch(self, epoch: int) -> None:
        if epoch == 1:
            self.keep()
        elif epoch == 2:
            self.put_back()


class EvaluatesAnAverage(Training):
    """Which takes the place of the weights for as long as that takes."""

    def after_epoch(self, epoch: int) -> None:
        self.keep()
        for each in self.model.parameters():
            each.data.mul_(0.5)
        self.put_back()


class BeginsAgainInTheSecond(Training):
    def before_epoch(self, epoch: int) -> None:
        if epoch == 2:
            self.model = copy.deepcopy(self.model)
            self.wrapped = DistributedDataParallel(self.model)
            self.make()
            self.name(self.account)  # type: ignore[arg-type]

    def make(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)


class BeginsAgainInTheMiddle(BeginsAgainInTheSecond):
    def before_epoch(self, epoch: int) -> None:
        pass

    def after_step(self, epoch: int, step: int) -> None:
        if step == 1:
            super().before_epoch(epoch + 1)


class TrainsABatchAgain(Training):
    def after_step(self, epoch: int, step: int) -> None:
        if step == 2:
            assert self.account and self.inputs is not None
            self.account.weigh(self.loss(self.inputs)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def loss(self, inputs: Tensor) -> Tensor:
        self.inputs = inputs
        return super().loss(inputs)


class TrainsTheLastBatchAgain(TrainsABatchAgain):
    """As by the variables that a loop has left."""

    def after_step(self, epoch: int, step: int) -> None:
        pass

    def at_end(self, account: Account) -> None:
        super().after_step(EPOCHS, 2)


class HasAHeadInTwoOptimizers(Training):
    """Each step of one is followed by one of the other, with the same gradients."""

    def name(self, account: Account) -> None:
        super().name(account)
        self.head = torch.optim.AdamW(self.model[2].parameters(), lr=0.01)
        account.optimizer(self.head)

    def before_step(self, epoch: int, step: int) -> None:
        self.head.step()


NOTHING = ["no parameter changed in train epoch 2"]
SAID: dict[type[Training], list[str] | None] = {
    LearnsNothingInTheSecond: NOTHING,
    ClipsToNothing: NOTHING,
    RollsBackEachStep: NOTHING,
    StepsTheHeadAlone: ["optimizer 2 had gradients and made no step in train epoch 2"],
    GoesOnWithEarlierWeights: ["the program has written to the weights before train epoch 2"],
    EvaluatesAnAverage: None,
    BeginsAgainInTheSecond: ["from a batch of train on, no step has trained the parameters of those before"],
    BeginsAgainInTheMiddle: ["from a batch of train on, no step has trained the parameters of those before"],
    TrainsABatchAgain: ["batches of train were trained by several steps"],
    HasAHeadInTwoOptimizers: ["batches of train were trained by several steps"],
}


def test_the_last_line_says_what_steps_have_left_undone(subtests: pytest.Subtests) -> None:
    kinds = [*SAID]
    for kind, found in zip(kinds, in_turn(2, ((runs, kind) for kind in kinds)), strict=True):
        with subtests.test(kind.__name__):
            assert [each["code"] for each in found] == [0, 0], found[0]["err"]
            assert found[0]["result"].get("caveats") == SAID[kind]
            for sentence in SAID[kind] or ():
                assert sentence in found[0]["err"]
                assert sentence in summary(verified(found))


def test_the_last_line_says_that_a_batch_was_trained_again_after_the_last_epoch() -> None:
    for found in run(2, runs, TrainsTheLastBatchAgain):
        assert (found["code"], found["result"]["caveats"]) == (0, SAID[TrainsABatchAgain]), found["err"]


class WarmsUp(Training):
    def before_step(self, epoch: int, step: int) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.01 * (step - 1)


class FreezesWhatIsCompared(Training):
    """The smallest parameters stay, as weights of 1 do in a small type, and the others are trained."""

    def make(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def before_step(self, epoch: int, step: int) -> None:
        for each in [*self.model.parameters()][1:]:
            if epoch > 1:
                assert each.grad is not None
                each.grad.zero_()


class UnfreezesOneByOne(Training):
    def before_epoch(self, epoch: int) -> None:
        self.model[0].requires_grad_(epoch > 1)
        self.model[2].requires_grad_(epoch != 2)


# Weights that are put back.


class RestoresTheBest(Training):
    def after_epoch(self, epoch: int) -> None:
        if epoch == 1:
            self.keep()

    def at_end(self, account: Account) -> None:
        self.put_back()


class RollsBackTheLastStep(Training):
    def before_step(self, epoch: int, step: int) -> None:
        self.keep()

    def at_end(self, account: Account) -> None:
        self.put_back()


class LeavesAnAverage(Training):
    def make(self) -> None:
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def after_step(self, epoch: int, step: int) -> None:
        self.average.update_parameters(self.model)

    def at_end(self, account: Account) -> None:
        for own, each in zip(self.model.parameters(), self.average.parameters(), strict=True):
            own.data.copy_(each.data)


class SaysSo(RestoresTheBest):
    def at_end(self, account: Account) -> None:
        super().at_end(account)
        account.replaced("the best of the validation")


class AveragesBeside(LeavesAnAverage):
    """The average takes the place of the weights in an evaluation alone."""

    def after_epoch(self, epoch: int) -> None:
        self.keep()
        super().at_end(Account("unused", epochs=1))
        self.put_back()

    def at_end(self, account: Account) -> None:
        pass


class ClampsAfterEachStep(Training):
    def after_step(self, epoch: int, step: int) -> None:
        for each in self.model.parameters():
            each.data.clamp_(-0.2, 0.2)


class Diverges(Training):
    def before_step(self, epoch: int, step: int) -> None:
        for each in self.model.parameters():
            assert each.grad is not None
            each.grad.fill_(torch.nan)


class GoesToAnotherType(Training):
    def at_end(self, account: Account) -> None:
        self.model.half()


class RestoresTheBestInAnotherType(RestoresTheBest):
    def at_end(self, account: Account) -> None:
        super().at_end(account)
        self.model.half()


RIGHT = [
    WarmsUp,
    FreezesWhatIsCompared,
    UnfreezesOneByOne,
    SaysSo,
    AveragesBeside,
    ClampsAfterEachStep,
    Diverges,
    GoesToAnotherType,
]
PUT_BACK = [RestoresTheBest, RestoresTheBestInAnotherType, RollsBackTheLastStep, LeavesAnAverage]


def test_weights_that_are_put_back_are_no_end_of_a_run_and_others_are(subtests: pytest.Subtests) -> None:
    kinds = [*RIGHT, *PUT_BACK]
    for kind, [found] in zip(kinds, in_turn(1, ((runs, kind) for kind in kinds)), strict=True):
        with subtests.test(kind.__name__):
            if kind in PUT_BACK:
                assert found["code"] == 3, found["err"]
                assert "the weights are not those that the last step has left" in found["err"]
                assert not [line for line in tallied(found["out"]) if line["phase"] == "all"]
            else:
                assert found["code"] == 0, found["err"]
                said = ["weights replaced by the program: the best of the validation"] if kind is SaysSo else None
                assert kind is Diverges or found["result"].get("caveats") == said


def writes_a_proof(folder: Path, how: str) -> None:
    training = Training()
    training.keep()
    training.run()
    assert training.account
    if how == "put back":
        training.put_back()
    torch.save(training.model.state_dict(), folder / "model.pt")
    training.account.write_proof(folder / "proof.json", folder / "model.pt")


@pytest.mark.parametrize(("how", "code"), [("", 0), ("put back", 2)])
def test_a_proof_is_of_the_weights_that_the_last_step_has_left(how: str, code: int, tmp_path: Path) -> None:
    found = alone(writes_a_proof, tmp_path, how)
    assert found["code"] == code, found["err"]
    assert (tmp_path / "proof.json").exists() == (code == 0)


def saves(folder: Path, how: str) -> None:
    class Saving(Training):
        def make(self) -> None:
            self.keep()

        def before_epoch(self, epoch: int) -> None:
            assert self.account
            if epoch == 1:
                objects = {"model": self.model, "optimizer": self.optimizer}
                self.checkpoints = self.account.checkpoints(folder, objects, every=32400)
                self.checkpoints.resume()

        def after_epoch(self, epoch: int) -> None:
            assert self.account
            if how and epoch == 2:
                self.put_back()
            if how == "says so" and epoch == 2:
                self.account.replaced("a plateau")
            self.checkpoints.save(wait=True)

    Saving().run()


def test_a_checkpoint_has_the_weights_that_the_last_step_has_left(subtests: pytest.Subtests, tmp_path: Path) -> None:
    said = "the weights are not those that the last step has left"
    cases = [("", 0, ""), ("puts back", 2, said), ("says so", 0, "")]
    assert_ends(subtests, 1, [((saves, tmp_path / how / "kept", how), code, each) for how, code, each in cases])


class SavesWhatIsPutBack(RestoresTheBest):
    def after_epoch(self, epoch: int) -> None:
        super().after_epoch(epoch)
        assert self.account
        if epoch == 2:
            self.put_back()
            self.account.replaced("a plateau")
            self.last = self.account.state_dict()["torchtally"]

    def at_end(self, account: Account) -> None:
        pass

    def run(self) -> Any:
        super().run()
        return self.last


def test_a_state_knows_what_the_last_line_has_to_say() -> None:
    found = alone(runs, SavesWhatIsPutBack)
    assert found["code"] == 0, found["err"]
    assert json.loads(found["result"])["caveats"] == ["weights replaced by the program: a plateau"]


# Guards that are off.


def with_guards_off(kind: type[Training], text: str) -> Any:
    os.environ["TORCHTALLY_GUARDS"] = text
    return kind().run()


def test_a_guard_that_is_off_is_named_by_the_proof() -> None:
    found = alone(with_guards_off, RestoresTheBest, "-replaced,-apart")
    assert found["code"] == 0, found["err"]
    assert found["result"]["caveats"] == ["guards off: apart, replaced"]
    assert "guards off: apart, replaced" in summary(verified([found]))


def test_an_unknown_guard_is_refused_with_the_names_of_all(subtests: pytest.Subtests) -> None:
    texts = ["replaced", "-other", "-apart -replaced", "-apart,"]
    said = []
    for text in texts:
        with pytest.raises(Refused) as refused:
            switched_off({"TORCHTALLY_GUARDS": text})
        said.append(plain(str(refused.value)))
        assert repr(text) in said[-1]
        assert all(f"-{each.name}" in said[-1] for each in GUARDS)
    assert_ends(
        subtests, 1, [((with_guards_off, Training, text), 2, each) for text, each in zip(texts, said, strict=True)]
    )


def off_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        os.environ["TORCHTALLY_GUARDS"] = "-apart"
    Training().run()


def test_guards_are_off_on_all_ranks_or_on_none() -> None:
    for found in run(2, off_on_rank_1):
        assert found["code"] == 2
        assert "guards off" in found["err"]


def test_the_docs_have_each_guard() -> None:
    """Its row has what it finds, what it costs, and which correct programs it refuses."""
    page = (DOCS / "reference" / "guards.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [each.name for each in GUARDS]
    assert all(len(row.split(" | ")) == 4 for row in rows)
