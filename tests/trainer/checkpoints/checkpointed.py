"""A loop whose weights count: each sample adds 1 to a row of its own. So they say what has become of every sample.

`Position` is as much of an account as checkpoints need.
"""

import contextlib
import io
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import ranks
import torch
import torch.distributed as dist
from accounts import raised_or
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import Store
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from torchtally import events
from torchtally.checkpoints import stopping
from torchtally.checkpoints.checkpoints import Checkpoints
from torchtally.checkpoints.objects import Objects
from torchtally.errors import Ending, Refused

N = 50  # the last step of an epoch is uneven
BATCH = 4  # of a rank
EPOCHS = 2


class Position:
    """Hands out the samples of two epochs, and knows how many are in the weights."""

    task = "counting"
    anew = False

    def __init__(self, seed: int = 0):
        self.seed, self.epoch, self.position, self.attempt, self.discarded = seed, 1, 0, 0, 0
        self.checkpoints: Checkpoints | None = None
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def save_problem(self, objects: Objects) -> None:
        pass

    @property
    def source(self) -> events.Source:
        return events.Source(pod=f"pod-{self.rank}", rank=self.rank, run="counting", attempt=self.attempt)

    @property
    def reached(self) -> tuple[int, int, int]:
        return self.epoch, self.position, (self.epoch - 1) * N + self.position

    def position_dict(self) -> dict[str, Any]:
        return {"torchtally": json.dumps([self.seed, self.epoch, self.position, self.attempt])}

    def begin_anew(self) -> None:
        pass

    def load_state_dict(self, state: dict[str, Any]) -> None:
        seed, self.epoch, self.position, attempt = json.loads(state["torchtally"])
        if seed != self.seed:
            raise Refused(f"the state has seed {seed}, and seed is {self.seed}")
        self.attempt = attempt + 1

    def batches(self) -> Iterator[list[int]]:
        while self.epoch <= EPOCHS:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(N)
            while self.position < N:
                if self.checkpoints:
                    self.checkpoints.before_batch()
                yield order[self.position : self.position + BATCH * self.world][self.rank :: self.world].tolist()
            self.epoch, self.position = self.epoch + 1, 0

    def commit(self) -> None:
        self.position = min(self.position + BATCH * self.world, N)
        if self.checkpoints:
            self.checkpoints.after_commit()


class Model(nn.Module):
    """Counts its samples, and is trained by Adam beside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.count = nn.Embedding(N, 1)
        nn.init.zeros_(self.count.weight)
        self.net = nn.Sequential(nn.Linear(1, 9), nn.Tanh(), nn.Linear(9, 1))
        self.unused = nn.Linear(2, 2)  # has never a gradient, so its optimizer has no state of it

    def forward(self, indices: Tensor) -> Tensor:
        counted = self.count(indices).sum() - self.count(indices).sum().detach()
        return self.net(indices[:, None] / N).square().sum() - counted


@dataclass
class Found:
    """What became of a loop on a rank."""

    count: list[float] | None = None  # of each sample
    bits: bytes = b""  # of weights and Adam's states
    code: int = 0
    message: str = ""
    err: str = ""
    events: list[Any] = field(default_factory=list)
    resumed: bool = False
    lr: float = 0
    commits: int = 0


class Loop:
    """The loop and what it has, as a user would write it. `wrapped` is "ddp", "fsdp" or "plain"."""

    def __init__(self, folder: str | Path, wrapped: str = "fsdp", seed: int = 0, **options: Any):
        self.account, self.model = Position(seed), Model()
        if wrapped == "fsdp":
            mesh = init_device_mesh("cpu", (self.account.world,))
            fully_shard(self.model, mesh=mesh)
        elif wrapped == "ddp":
            self.model = DistributedDataParallel(self.model, find_unused_parameters=True)
        inner = self.model.module if wrapped == "ddp" else self.model
        self.sgd = torch.optim.SGD(inner.count.parameters(), lr=1)
        self.adam = torch.optim.Adam([*inner.net.parameters(), *inner.unused.parameters()], lr=0.01, fused=True)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.adam, 3, gamma=0.5)
        self.account.checkpoints = self.checkpoints = Checkpoints(
            self.account,
            folder,
            {"model": self.model, "sgd": self.sgd, "adam": self.adam, "schedule": self.schedule},
            **options,
        )
        self.found = Found()

    def run(self, before_commit: Callable[["Loop"], None] = lambda loop: None, late: str = "") -> None:
        """`before_commit` is called before each commit. What is `late` comes after it."""
        self.found.resumed = self.checkpoints.resume()
        for indices in self.account.batches():
            loss = self.model(torch.tensor(indices, dtype=torch.int64)) * self.account.world
            loss.backward()
            steps = {"model": self.sgd.step, "adam": self.adam.step, "schedule": self.schedule.step}
            for name, step in steps.items():
                if name != late:
                    step()
            self.found.commits += 1
            before_commit(self)
            self.account.commit()
            if late in steps:
                steps[late]()
            self.sgd.zero_grad()
            self.adam.zero_grad()
        self.checkpoints.close()
        values = [value for name, value in self.model.state_dict().items() if "more" not in name]
        values += [value for state in self.adam.state.values() for value in state.values()]
        whole = [value.full_tensor() if isinstance(value, DTensor) else value for value in values]
        self.found.count = whole[0].flatten().tolist()
        self.found.bits = b"".join(value.numpy().tobytes() for value in whole)
        self.found.lr = self.schedule.get_last_lr()[0]

    def due(self) -> None:
        """A checkpoint is due at the commit that comes; the former one is done."""
        self.checkpoints._writer.finish()
        self.checkpoints._saved = -1e9


def as_rank(rank: int, world: int, store: Store, body: Callable[..., Loop | None], *arguments: Any) -> Found:
    """`body(*arguments)`, in a process group in which all ranks meet at every commit."""
    return _in_turn(rank, world, store, [(body, *arguments)])[0]


def _in_turn(rank: int, world: int, store: Store, cases: list[tuple[Any, ...]]) -> list[Found]:
    stopping._SYNCHRONIZE_SECONDS = 0
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    return [_of(*case) for case in cases]


def _of(body: Callable[..., Loop | None], *arguments: Any) -> Found:
    out, err, found = io.StringIO(), io.StringIO(), Found()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if loop := body(*arguments):
                found = loop.found
        except Ending as ending:
            found.code, found.message = ending.code, str(ending)
    found.err = err.getvalue()
    found.events = [record.event for record in events.in_lines(out.getvalue().splitlines())]
    return found


def run(world: int, body: Callable[..., Loop | None], *arguments: Any) -> list[Found]:
    return [raised_or(each) for each in ranks.run(world, as_rank, body, *arguments)]


def in_turn(cases: Iterable[tuple[Any, ...]]) -> list[Found]:
    """What a rank finds of each of these bodies with their arguments, in one process."""
    found: list[Found] = raised_or(ranks.run(1, _in_turn, [*cases])[0])
    return found


def whole(folder: str | Path, wrapped: str = "fsdp", options: dict[str, Any] | None = None) -> Loop:
    """Go on to the end, without another checkpoint unless `options` ask for it."""
    loop = Loop(folder, wrapped, **{"every": 32400} | (options or {}))
    loop.run()
    return loop


def stopped_after(folder: str | Path, commits: int, wrapped: str = "fsdp") -> Loop:
    """Rank 0 receives SIGTERM before a commit."""
    loop = Loop(folder, wrapped, every=32400)

    def before_commit(loop: Loop) -> None:
        if loop.found.commits == commits and loop.account.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    loop.run(before_commit)
    return loop


def plain(event: Any) -> dict[str, Any]:
    """An event without what differs between two runs."""
    return {
        key: value
        for key, value in msgspec.structs.asdict(event).items()
        if key not in ("path", "checkpoint", "seconds")
    }
