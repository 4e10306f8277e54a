"""The contract and the batch sizes of models with BatchNorm, which cannot take a batch of one row."""

from torch import nn

from torchtally import compat
from torchtally.accounting.account import Account
from torchtally.accounting.order.sampler import Sampler
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.options import Training
from torchtally.proof.contract import Contract
from torchtally.proof.shards import Shard


def contract(options: Training, model: nn.Module, n: int, account: Account) -> Contract:
    """Return the contract of the training. Raises Refused if it leaves no sample."""
    with_batch_norm, world = _has_batch_norm(model), account.world
    chosen = options.contract or ("drop_last" if with_batch_norm else "exact")
    everything = Shard(n=n, rank=account.rank, world=world, contract=chosen).total
    if not everything:
        raise Refused(f"--contract {chosen} leaves none of {n} samples for {world} ranks: use fewer ranks, or exact")
    if with_batch_norm and options.contract is None and account.rank == 0:
        log.info(
            "the model has BatchNorm, which cannot take a batch of one row, so the contract is drop_last: "
            f"{n - everything} of {n} samples are left out of each epoch"
        )
    return chosen


def refuse_single_rows(model: nn.Module, sampler: Sampler) -> None:
    """Raise Refused if the last step of the epoch would pass BatchNorm a batch of one row."""
    if not _has_batch_norm(model):
        return
    shard, world, batch = sampler.schedule.shard, sampler.world, sampler.batch
    everything = shard.total
    last = everything - (shard.steps(batch) - 1) * batch
    if everything and last // world < 2:
        raise Refused(
            f"the last step of epoch {shard.epoch} has {last} samples for {world} ranks, and BatchNorm needs 2 on each:"
            f" --batch-size {batch // world} (--global-batch-size {batch}) must be such that {everything} "
            "samples leave more"
        )


def _has_batch_norm(model: nn.Module) -> bool:
    """Whether the model has torch's BatchNorm, or Keras', which shows in its parameters' names only."""
    return compat.has_batch_norm(model) or any(
        name.endswith("/moving_variance") for name, _ in model.named_parameters()
    )
