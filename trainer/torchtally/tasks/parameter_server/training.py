"""The training of the task parameter-server: a loop of its own over an account, as a user would write it.

Each rank has the linear layer, under DDP. The table is shared, in one of two forms: on rank 0, the parameter server, or
with its rows sharded over all ranks. A step equals that of one process on the batches of all ranks.
"""

import time
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from torchtally.accounting.account import Account
from torchtally.accounting.evaluation import evaluate
from torchtally.distributed import waiting
from torchtally.environment import store_address, trusts_network
from torchtally.errors import Refused
from torchtally.pod import address, network_interface
from torchtally.tasks.parameter_server.options import Options
from torchtally.tasks.parameter_server.remote_table import RemoteTable
from torchtally.tasks.parameter_server.sharded_table import ShardedTable
from torchtally.tasks.parameter_server.task import TASK, Model, bags
from torchtally.training import artifacts
from torchtally.training.loop import EVALUATION_BATCH, rows
from torchtally.training.results import Epoch
from torchtally.training.setup import RankContext, set_up
from torchtally.training.steps import Steps


class Table(Protocol):
    """A table that all ranks share."""

    def look_up(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """The sums (bags, width) of the rows `indices` (int64), one for each bag; bags begin at `offsets`."""

    def step(self) -> None:
        """Step with the mean of all ranks' gradients. A collective call."""

    def close(self) -> Tensor | None:
        """End the use of the table; returns its weight (rows, width) on rank 0. A collective call."""


class Classifier(nn.Module):
    """The layer of this rank over the shared table, which is none of its parameters."""

    def __init__(self, table: Table, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self._look_up = table.look_up

    def forward(self, samples: Tensor) -> Tensor:
        """Logits (bags, classes) of samples (bags, largest) with padding."""
        sums = self._look_up(*bags(samples.cpu()))
        logits: Tensor = self.linear(sums.to(self.linear.weight.device))
        return logits


class Trainer:
    """The loop of one rank."""

    def __init__(self, options: Options, account: Account, context: RankContext, table: Table, linear: nn.Linear):
        self._account, self._context, self._table = account, context, table
        self._train = account.sampler(
            "train", len(context.train), batch_size=options.batch_size, fingerprint=TASK.fingerprint
        )
        self._test = account.sampler(
            "test",
            len(context.test),
            batch_size=EVALUATION_BATCH,
            shuffle=False,
            trains=False,
            fingerprint=TASK.fingerprint,
        )
        self._model = DistributedDataParallel(Classifier(table, linear.to(context.device)))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=options.lr)

    def epoch(self, number: int) -> Epoch:
        """Train with all samples, and evaluate."""
        account, train, test = self._account, self._context.train, self._context.test
        began, total = time.perf_counter(), torch.zeros((), dtype=torch.float64)
        steps = Steps(self._train, train, lambda chosen: rows(TASK, train, chosen))
        for batch in account.epoch("train", number, steps):
            inputs, labels = batch.data
            loss = cross_entropy(self._model(inputs), labels.to(self._context.device), reduction="sum")
            # DDP and the table divide the sum over ranks by their number.
            waiting.timed(loss * account.world / batch.rows).backward()
            self._optimizer.step()
            self._table.step()
            self._optimizer.zero_grad()
            total += loss.item()
            account.commit()
            if len(labels):
                account.log(loss=loss.detach() / len(labels))
        seconds = time.perf_counter() - began
        dist.all_reduce(total)
        steps = Steps(self._test, test, lambda chosen: rows(TASK, test, chosen))
        found = evaluate(self._model, account.epoch("test", number, steps), len(test))
        correct, n = int(found.totals["correct"]), len(train)
        return Epoch(number, total.item() / n, found.mean("loss"), correct, len(test), n / seconds)


def fit(name: str, options: Options, output: Path) -> None:
    """Train, and write the model and its proof. Raises what ends the run."""

    def prepare() -> None:
        if options.form == "rpc" and not address.is_loopback(store_address()[0]) and not trusts_network():
            raise Refused(
                "by RPC, whoever reaches a pod's ports can run code there: set TORCHTALLY_TRUSTED_NETWORK=true where "
                "only the job's pods do, as with the chart's networkPolicy, which sets it, or use --form collective"
            )
        artifacts.prepare(output)

    network_interface.choose(*store_address())
    context = set_up(TASK, None, options.common(), prepare)
    plan, identity = (
        dict.fromkeys(("train", "test"), options.epochs),
        artifacts.training(name, options, TASK.fingerprint),
    )
    # A start has no checkpoint to load: the training takes less time than a restart.
    with Account(name, plan=plan, seed=options.seed, anew=True) as account:
        model = TASK.model(options)  # equal on all ranks
        assert isinstance(model, Model)
        of_form = RemoteTable if options.form == "rpc" else ShardedTable
        table: Table = of_form(model.table.weight.detach(), options.lr)
        trainer = Trainer(options, account, context, table, model.linear)
        account.describe(options.training_options())
        epochs = []
        for number in account.epochs():
            epochs.append(trainer.epoch(number))
            if account.rank == 0:
                epochs[-1].tell(options.epochs, account.source)
        weight = table.close()
        if weight is not None:
            model.table.load_state_dict({"weight": weight})
            hashes = artifacts.write_model(model, TASK, output, account.source)
            account.made = artifacts.sha256_text(hashes[artifacts.MODEL]), str(output)
            account.after_end(
                lambda last: artifacts.write_proof(output, hashes, last, identity, epochs, account.source)
            )
