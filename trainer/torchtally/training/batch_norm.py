"""The contract and the batch sizes of models with BatchNorm, which cannot take a batch of one row."""

from torch import nn

from torchtally import compat
from torchtally.accounting.ledger.tally import Run, Tally
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.options import Training
from torchtally.proof.contract import Contract
from torchtally.proof.shards import Shard


def contract(options: Training, model: nn.Module, n: int, run: Run) -> Contract:
    """Return the contract of the training. Raises Refused if it leaves no sample."""
    with_batch_norm = _has_batch_norm(model)
    chosen = options.contract or ("drop_last" if with_batch_norm else "exact")
    everything = Shard(n=n, rank=run.rank, world=run.world, contract=chosen).total
    if not everything:
        raise Refused(f"--contract {chosen} leaves none of {n} samples for {run.world} ranks")
    if with_batch_norm and options.contract is None and run.rank == 0:
        log.info(
            "the model has BatchNorm, which cannot take a batch of one row, so the contract is drop_last: "
            f"{n - everything} of {n} samples are left out of each epoch"
        )
    return chosen


def refuse_single_rows(model: nn.Module, tally: Tally) -> None:
    """Raise Refused if the last step of an epoch would pass BatchNorm a batch of one row."""
    if not _has_batch_norm(model):
        return
    phase, world = tally.phase, tally.run.world
    everything = tally.shard.total
    last = everything - (tally.shard.steps(phase.batch) - 1) * phase.batch
    if everything and last // world < 2:
        raise Refused(
            f"the last step of epoch {phase.epoch} has {last} samples for {world} ranks, and BatchNorm needs 2 on each:"
            f" --batch-size {phase.batch // world} (--global-batch-size {phase.batch}) must be such that {everything} "
            "samples leave more"
        )


def _has_batch_norm(model: nn.Module) -> bool:
    """Whether the model has torch's BatchNorm, or Keras', which shows in its parameters' names only."""
    return compat.has_batch_norm(model) or any(
        name.endswith("/moving_variance") for name, _ in model.named_parameters()
    )
