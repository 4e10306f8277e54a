"""The training of the task gpt: a loop of its own over an account, as a user would write it.

FSDP2 shards the parameters over all ranks. torch's distributed checkpoints hold each shard, so that any number of ranks
can continue.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

from torchtally import standard_output
from torchtally.accounting.account import Account
from torchtally.accounting.batches.collate import Batch
from torchtally.accounting.proofs import kept_lines, proof_file
from torchtally.atomic_file import clear, replace
from torchtally.distributed import process_group, waiting
from torchtally.environment import Places, Process
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.pod import device
from torchtally.tasks.gpt import text
from torchtally.tasks.gpt.model import GPT
from torchtally.tasks.gpt.options import Options
from torchtally.training import artifacts
from torchtally.training.results import Epoch

MODEL, TOKENIZER, CONFIGURATION = "model.safetensors", "tokenizer.json", "gpt.json"
_WARM_UP = 0.05  # of the training
_LONGEST = 1.0  # norm of a step's gradient
_LOG_SECONDS = 10
_SAMPLE = 64  # tokens that are made up at the end


class Totals:
    """Sums over all ranks of an epoch so far, which travel in checkpoints."""

    def __init__(self, where: torch.device):
        self.epoch, self.loss, self.tokens = 0, torch.zeros((), dtype=torch.float64, device=where), 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "loss": self.loss.item(), "tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.tokens = state["epoch"], state["tokens"]
        self.loss.fill_(state["loss"])

    def add(self, epoch: int, loss: Tensor, tokens: int) -> None:
        """Add the sum of losses of all ranks, who have trained on `tokens`."""
        if epoch != self.epoch:
            self.epoch, self.tokens = epoch, 0
            self.loss.zero_()
        self.loss += loss
        self.tokens += tokens


class Trainer:
    """The loop of one rank."""

    def __init__(self, options: Options, account: Account, found: text.Text, where: torch.device, output: Path):
        self._options, self._account, self._where = options, account, where
        train, test = text.split(found, options.length)
        contract = options.contract or "exact"
        pinned = where.type == "cuda"
        self._train = account.loader(
            train, "train", batch_size=options.batch_size, contract=contract, pin_memory=pinned
        )
        self._test = account.loader(
            test, "test", batch_size=options.batch_size, shuffle=False, trains=False, pin_memory=pinned
        )
        self.model = _sharded(options, found.tokenizer.get_vocab_size(), where)
        self._parameters: list[Any] = [*self.model.parameters()]
        self._optimizer = _optimizer(self.model, options)
        self._totals = Totals(where)
        self._samples = options.epochs * len(train)
        objects = {"model": self.model, "optimizer": self._optimizer, "totals": self._totals}
        self._checkpoints = account.checkpoints(
            options.checkpoints or output / "checkpoints", objects, every=options.save_seconds, keep=options.keep
        )
        self.resumed = self._checkpoints.resume()

    def train(self, epoch: int) -> tuple[float, float]:
        """Train the rest of an epoch; returns its mean loss, and the samples of all ranks a second."""
        options, account = self._options, self._account
        began, samples, due = time.perf_counter(), 0, time.monotonic() + _LOG_SECONDS
        rows, loss = 0, torch.zeros((), dtype=torch.float64, device=self._where)
        for batch in account.epoch("train", epoch, self._train):
            last = batch.step % options.accumulate == 0 or batch.step == batch.steps
            self.model.set_requires_gradient_sync(last)
            loss += self._backward(batch)
            rows += batch.rows
            if last:
                self._step(epoch, loss, rows * options.length)
                samples += rows
                rows, loss = 0, torch.zeros_like(loss)
                account.commit()
                if account.rank == 0 and time.monotonic() > due:
                    standard_output.write(f"train epoch {epoch}/{options.epochs}: step {batch.step} of {batch.steps}")
                    due += _LOG_SECONDS
        loss_so_far = self._totals.loss.item()  # which waits for the device
        speed = samples / (time.perf_counter() - began)
        return loss_so_far / max(1, self._totals.tokens), speed

    @torch.no_grad()
    def test(self, epoch: int) -> tuple[float, int, int]:
        """Evaluate every test sample once; returns the sum of losses, and the right and all predicted tokens."""
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self._where)
        for batch in self._account.epoch("test", epoch, self._test):
            logits, targets, present = self._predict(batch)
            if present:
                right = (logits.argmax(dim=2) == targets).sum()
                sums += torch.stack([_loss(logits, targets), right.double(), torch.ones_like(right) * targets.numel()])
        self.model.train()
        dist.all_reduce(sums)
        loss, right, everything = sums.tolist()
        return loss, int(right), int(everything)

    @torch.no_grad()
    def sample(self, found: text.Text) -> str:
        """Text that the model makes up. A collective call, as each layer is gathered from all ranks."""
        self.model.eval()
        random = torch.Generator().manual_seed(self._options.seed)  # the same on all ranks
        tokens = torch.tensor([found.tokenizer.encode("\n").ids], device=self._where)
        for _ in range(_SAMPLE):
            chances = self.model(tokens[:, -self._options.length :])[0, -1].float().softmax(0).cpu()
            chosen = torch.multinomial(chances, 1, generator=random).to(self._where)
            tokens = torch.cat([tokens, chosen[None]], dim=1)
        made: str = found.tokenizer.decode(tokens[0].tolist())
        return made

    def _backward(self, batch: Batch) -> Tensor:
        """Add the gradients of a batch; returns this rank's sum of losses. All ranks take part, also without a row."""
        logits, targets, present = self._predict(batch)
        loss = _loss(logits, targets) * present
        waiting.timed(loss).backward()
        return loss.detach()

    def _predict(self, batch: Batch) -> tuple[Tensor, Tensor, bool]:
        """Logits and targets of a batch, or of a row of zeros if it is empty, and whether it is not."""
        present = len(batch.data) > 0
        tokens = batch.data if present else torch.zeros(1, self._options.length + 1, dtype=torch.int64)
        tokens = tokens.to(self._where, non_blocking=True)
        return self.model(tokens[:, :-1]), tokens[:, 1:], present

    def _step(self, epoch: int, loss: Tensor, tokens: int) -> None:
        """Step with the mean over the tokens of all ranks. `loss` is this rank's sum. A collective call."""
        # Plain tensors: each operation on a DTensor takes longer than a small model's numbers do.
        gradients = [each.grad.to_local() for each in self._parameters if each.grad is not None]
        sums = torch.stack([loss, nn.utils.get_total_norm(gradients).double().square()])
        dist.all_reduce(sums)
        self._totals.add(epoch, sums[0], tokens)
        scale = self._account.world / tokens  # FSDP has divided the sum over ranks by their number
        clipped = (_LONGEST / (scale * sums[1].sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale * clipped)
        done = self._account.reached[2] / self._samples
        for group in self._optimizer.param_groups:  # it follows from the position, at any number of ranks
            group["lr"] = self._options.lr * rate(done)
        self._optimizer.step()
        self._optimizer.zero_grad()


def rate(done: float) -> float:
    """What the learning rate is multiplied by: a linear warm-up, and a cosine to a tenth."""
    return min(1.0, done / _WARM_UP + 0.01) * (0.55 + 0.45 * math.cos(math.pi * min(1.0, done)))


def fit(name: str, options: Options, output: Path) -> None:
    """Train, and write the model. Raises what ends the run."""
    process, places = Process.from_env(os.environ), Places.from_env(os.environ)
    problem = found = where = identity = None
    try:
        where = device.choose(places.device, process.local_rank)
        if options.width % (2 * options.heads):
            raise Refused(f"--width {options.width} must be a multiple of 2 x --heads {options.heads}")
        if process.rank == 0:
            artifacts.prepare(output)
        found = text.load(options.data or places.data, places.cache, options.vocabulary)
        text.split(found, options.length)
        identity = artifacts.training(name, options, found.fingerprint)
        if process.rank == 0:
            artifacts.refuse_another(identity, output)
    except Refused as refused:
        problem = str(refused)
    facts = options.common() | {"device": where.type if where else None}
    store, *_ = process_group.join(process, facts, problem)
    assert found is not None and where is not None
    process_group.create(store, process, where)
    plan = {"train": options.epochs, "test": options.epochs}
    with Account(task=name, plan=plan, seed=options.seed) as account:
        trainer = Trainer(options, account, found, where, output)
        if before := account.grown_from:
            raise Refused(
                f"--epochs {options.epochs} must be {before['train']}, as in the checkpoint: the learning rate of "
                "this task depends on it from the first step on"
            )
        files = _train(account, trainer, options, found, output)
    if files and (last := account.last_line):
        proof, lines = output / artifacts.PROOF, kept_lines.lines(last["run"])
        artifacts.with_retries(
            lambda: proof_file.write(proof, files, lines, last, training=identity), output, account.source
        )


def _train(
    account: Account, trainer: Trainer, options: Options, found: text.Text, output: Path
) -> dict[str, str] | None:
    """Train, and write the model; returns the SHA-256 of its files on rank 0."""
    if account.rank == 0 and not trainer.resumed:
        size = sum(each.numel() for each in trainer.model.parameters())
        log.info(f"{size:,} parameters, {len(found.tokens):,} tokens, {account.world} ranks")
    for epoch in account.epochs():
        loss, speed = trainer.train(epoch)
        test_loss, right, tested = trainer.test(epoch)
        if account.rank == 0:
            Epoch(epoch, loss, test_loss / tested, right, tested, speed).tell(options.epochs, account.source)
    made = trainer.sample(found)
    weights = get_model_state_dict(trainer.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    files = None
    if account.rank == 0:
        log.info(f"sample: {made!r}")
        files = artifacts.with_retries(lambda: _write(weights, options, found, output), output, account.source)
    dist.barrier()
    return files


def _write(weights: dict[str, Any], options: Options, found: text.Text, output: Path) -> dict[str, str]:
    configuration = {name: getattr(options, name) for name in ("width", "layers", "heads", "length")}
    configuration["vocabulary"] = found.tokenizer.get_vocab_size()
    files = {
        TOKENIZER: found.tokenizer.to_str().encode(),
        CONFIGURATION: (json.dumps(configuration, indent=1) + "\n").encode(),
        MODEL: save(weights),
    }
    clear(output, files)
    for name, contents in files.items():
        replace(output / name, contents)
    hashes = {name: hashlib.sha256(contents).hexdigest() for name, contents in files.items()}
    log.info(f"wrote {output / MODEL} (sha256:{hashes[MODEL]})")
    return hashes


def _sharded(options: Options, vocabulary: int, where: torch.device) -> Any:
    """The model with its first weights, sharded over all ranks."""
    torch.manual_seed(options.seed)
    model = GPT(vocabulary=vocabulary, width=options.width, layers=options.layers, heads=options.heads).to(where)
    mesh = init_device_mesh(where.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, options.precision), reduce_dtype=torch.float32)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    assert isinstance(model, FSDPModule)
    return model


def _optimizer(model: nn.Module, options: Options) -> torch.optim.Optimizer:
    """AdamW, with weight decay for matrices alone."""
    decayed: Iterable[nn.Parameter] = [each for each in model.parameters() if each.ndim == 2]
    others = [each for each in model.parameters() if each.ndim != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=True)


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum of the losses over all tokens."""
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum").double()
