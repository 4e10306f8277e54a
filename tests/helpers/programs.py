"""Random programs with an Account on real ranks, killed and started again: test_random_programs.py judges them.

Every attempt has processes of its own, which end without a cleanup where they are killed.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import ranks
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store
from torch.utils.data import default_collate
from witness import Noisy, Witness

from torchtally import Account, Batch, Steps, Tokens
from torchtally.atomic_file import replace
from torchtally.checkpoints import stopping
from torchtally.errors import Ending
from torchtally.pod import failure
from torchtally.proof.contract import Contract

KILLED = 9
Evaluated = Literal["never", "first", "each epoch", "twice an epoch", "last"]
Saved = Literal["by hand", "by hand after the epoch", "checkpoints"]
Mistake = Literal["leaves an epoch", "skips a batch", "commits late", "loads no state"]
MISTAKES = get_args(Mistake)


@dataclass(frozen=True)
class Attempt:
    """One start of the program.

    Attributes:
        world: Number of ranks.
        batch: Samples of a rank in a step.
        dies: Commits after which ranks are killed; None if none is.
        one: Whether rank 0 alone is killed, and the others find it gone.
    """

    world: int
    batch: int
    dies: int | None = None
    one: bool = False


@dataclass(frozen=True)
class Program:
    n: int
    seed: int
    plan: int | Steps | Tokens
    contract: Contract
    dropped: frozenset[int]
    accumulate: int
    evaluated: Evaluated
    saved: Saved
    saves: int  # commits between two states that are saved by hand
    explicit: bool  # whether commit() receives the batch
    stops: int | None  # commits of an attempt after which it ends the run
    skips: frozenset[int]  # batches of an attempt that it leaves out, and says so
    weighed: bool  # whether it names its optimizers and weighs its losses, and makes no commits
    attempts: tuple[Attempt, ...]
    mistake: Mistake | None = None
    wrong: int = 1  # the batch of an attempt that the mistake is about


@dataclass(frozen=True)
class Ended:
    """How the ranks of an attempt ended, and rank 0's weights and last line where they are complete."""

    codes: list[int]
    times: list[int]
    last: dict[str, Any] | None
    err: str


def run(program: Program, folder: Path) -> Ended:
    """All attempts until one is not killed; the last one. `folder` gets a log of each rank, and the checkpoints."""
    for number, attempt in enumerate(program.attempts):
        found = ranks.run(attempt.world, _as_rank, program, number, attempt, folder, killed=True)
        codes = [KILLED if each is None else each[0] if isinstance(each, tuple) else 1 for each in found]
        if KILLED not in codes:
            break
    err = "".join((folder / f"pod-{rank}-{number}.err").read_text() for rank in range(attempt.world))
    times, last = found[0][1] if codes[0] == 0 else ([], None)
    return Ended(codes, times, last, err + "".join(str(each) for each in found if isinstance(each, Exception)))


def _as_rank(
    rank: int, world: int, store: Store, program: Program, number: int, attempt: Attempt, folder: Path
) -> tuple[int, Any]:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), HOSTNAME=f"pod-{rank}")
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ.update(TORCHTALLY_RUN=f"drawn in attempt {number}", TORCHELASTIC_RESTART_COUNT=str(number))
    os.dup2(os.open(folder / f"pod-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(os.open(folder / f"pod-{rank}-{number}.err", os.O_WRONLY | os.O_CREAT), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        return 0, _trains(program, number, attempt, folder, rank)
    except Ending as ending:
        return failure.end(ending), None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _trains(program: Program, number: int, attempt: Attempt, folder: Path, rank: int) -> tuple[Any, ...]:
    training = Witness(program.n)
    file = folder / "saved"
    by_hand = program.saved != "checkpoints"
    fresh = by_hand and not file.exists()
    plan: dict[str, Any] = {"train": program.plan}
    if program.evaluated != "never":
        times = {"each epoch": 1, "twice an epoch": 2}.get(program.evaluated)
        plan["test"] = program.plan * times if times and isinstance(program.plan, int) else 1
    with Account(task="random", plan=plan, seed=program.seed, anew=fresh) as account:
        loader = account.loader(
            Noisy(program.n),
            "train",
            batch_size=attempt.batch,
            contract=program.contract,
            collate_fn=_dropping(program.dropped) if program.dropped else None,
        )
        tests = account.loader(Noisy(3), "test", batch_size=2, shuffle=False, trains=False) if "test" in plan else None
        save = _saver(program, account, training, folder, rank)
        if by_hand and not fresh:
            state, weights = torch.load(file)
            training.load(weights)
            if not (number and program.mistake == "loads no state"):
                account.load_state_dict(state)
        if program.weighed:
            for optimizer in training.optimizers:
                account.optimizer(optimizer)
        loop = _Loop(program, attempt, account, training, save, rank)
        if tests and program.evaluated == "first":
            loop.evaluate(1, tests)
        for epoch in account.epochs():
            if epoch <= account.plan["train"]:
                loop.train(epoch, loader)
            if tests and program.evaluated == "each epoch" and epoch <= account.plan["test"]:
                loop.evaluate(epoch, tests)
            if tests and program.evaluated == "twice an epoch" and epoch <= account.plan["train"]:
                for _ in range(2):
                    sum(1 for _ in tests)
                    if program.saved == "by hand after the epoch":
                        save()
            if program.saved == "by hand after the epoch":
                save()
        if tests and program.evaluated == "last":
            loop.evaluate(1, tests)
    return training.times, account.last_line


def _saver(program: Program, account: Account, training: Witness, folder: Path, rank: int) -> Callable[[], None]:
    """Saves by hand, or prepares checkpoints, which then save without a call."""
    if program.saved == "checkpoints":
        stopping._SYNCHRONIZE_SECONDS = 0
        account.checkpoints(folder / "checkpoints", training.objects, every=0.001).resume()

    def by_hand() -> None:
        state = account.state_dict()
        if rank == 0:
            replace(folder / "saved", lambda file: torch.save((state, training.save()), file))

    return by_hand


class _Loop:
    def __init__(
        self,
        program: Program,
        attempt: Attempt,
        account: Account,
        training: Witness,
        save: Callable[[], None],
        rank: int,
    ):
        self._program, self._attempt, self._account = program, attempt, account
        self._training, self._save, self._rank = training, save, rank
        self._batches = self._commits = 0
        self._pending: Batch | None = None  # the last whose gradients are accumulated
        self._stopped = False

    def train(self, epoch: int, loader: Any) -> None:
        for batch in self._account.epoch("train", epoch, loader):
            self._batches += 1
            wrong = self._program.mistake if self._batches == self._program.wrong else None
            if wrong == "leaves an epoch":
                break
            if wrong == "skips a batch":
                continue
            if self._batches in self._program.skips:
                self._account.skip("its loss is not finite", *[batch] * self._program.explicit)
                self._step(batch)
                continue
            if self._program.weighed:
                loss = self._training.mean_loss(*batch.data) * batch.rows / self._account.world
                self._account.weigh(loss, *[batch] * self._program.explicit).backward()
            elif batch.data is None:
                self._training.backward(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4))
            else:
                self._training.backward(*batch.data)
            self._pending = batch
            self._step(batch, late=wrong == "commits late")

    def _step(self, batch: Batch, late: bool = False) -> None:
        """Step and commit, if gradients are accumulated and it is time."""
        if self._pending and (batch.step % self._program.accumulate == 0 or batch.step == batch.steps):
            self._training.step()
            if late:
                self._save()
            self._commit(self._pending)
            self._pending = None

    def evaluate(self, epoch: int, loader: Any) -> None:
        if self._account.completed("test") < epoch:
            for _ in self._account.epoch("test", epoch, loader):
                pass

    def _commit(self, batch: Batch) -> None:
        if not self._program.weighed:
            self._account.commit(*[batch] * self._program.explicit)
        self._commits += 1
        if self._commits == self._program.stops and not self._stopped:
            self._stopped = True
            self._account.stop("enough")
        if self._program.saved == "by hand" and self._commits % self._program.saves == 0:
            self._save()
        if self._commits == self._attempt.dies and (self._rank == 0 or not self._attempt.one):
            os._exit(KILLED)


def _dropping(dropped: frozenset[int]) -> Callable[[Any], Batch]:
    def collate(samples: Any) -> Batch:
        kept = [(index, sample) for index, sample in zip(samples.indices, samples, strict=True) if index not in dropped]
        told = {index: "unreadable" for index in samples.indices if index in dropped}
        data = default_collate([sample for _, sample in kept]) if kept else None
        return Batch([index for index, _ in kept], data, dropped=told)  # type: ignore[arg-type]

    return collate
