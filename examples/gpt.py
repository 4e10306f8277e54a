"""A GPT of one's own: FSDP2, bf16, gradient accumulation, a cosine schedule, and sharded checkpoints, with a proof.

torchtally run -- python examples/gpt.py                    on this machine, or as the command of a PyTorchJob
torchtally run -- python examples/gpt.py --text my.txt      on your own text

Kill it at any moment and start it again, with any number of ranks: it resumes at the sample where its weights are.
The lines that mention `account` or `checkpoints` are all that it takes.
"""

import argparse
import hashlib
import math
import os
from pathlib import Path
from pydoc_data.topics import topics  # a text that every Python has

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import Dataset

from torchtally import Account, Steps


class Characters(Dataset[Tensor]):
    """Successive windows of a text: `length` characters and the next one, as int64 (length + 1,)."""

    def __init__(self, text: str, length: int):
        self.vocabulary, codes = torch.tensor([ord(each) for each in text]).unique(return_inverse=True)
        self.codes, self.length = codes, length
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]  # equal text for equal data

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, index: int) -> Tensor:
        return self.codes[index * self.length : (index + 1) * self.length + 1]


class Block(nn.Module):
    """Causal attention and a feed-forward network, each with a residual."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.attention, self.projection = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.attention(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        attended = scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.norms[1](x))


class GPT(nn.Module):
    """A decoder: tokens (batch, length) to logits (batch, length, kinds)."""

    def __init__(self, kinds: int, length: int, width: int, layers: int, heads: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(kinds, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, kinds, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(options: argparse.Namespace, account: Account, data: Characters, model: GPT) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 + math.cos(math.pi * min(1, step * options.accumulate / options.steps))) / 2
    )
    loader = account.loader(data, "train", batch_size=options.batch, contract="drop_last")
    checkpoints = account.checkpoints(
        options.output, {"model": model, "optimizer": optimizer, "schedule": schedule}, every=options.save_every
    )
    checkpoints.resume()
    total = 0.0
    for epoch in account.epochs():
        for batch in account.epoch("train", epoch, loader):
            last = batch.step % options.accumulate == 0 or batch.step == batch.steps
            model.set_requires_gradient_sync(last)
            logits = model(batch.data[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1).float(), batch.data[:, 1:].flatten()) / options.accumulate
            loss.backward()
            total += loss.item()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                account.commit()
                if account.rank == 0 and batch.step % (20 * options.accumulate) == 0:
                    print(f"epoch {epoch}, step {batch.step} of {batch.steps}: loss {total / 20:.3f}", flush=True)
                    total = 0.0


@torch.inference_mode()
def sample(model: GPT, data: Characters, length: int = 80) -> str:
    """Text that the model makes up. A collective call, as each layer is gathered from all ranks."""
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    random = torch.Generator().manual_seed(0)  # the same on all ranks
    for _ in range(length):
        chances = model(tokens[:, -data.length :])[0, -1].float().softmax(0)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=random)[None]], dim=1)
    return "".join(chr(data.vocabulary[token]) for token in tokens[0, 1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, nargs="*", help="text files (default: the topics of Python's help)")
    parser.add_argument("--output", default=os.environ.get("TORCHTALLY_OUTPUT", "output") + "/gpt")
    parser.add_argument("--steps", type=int, default=400, help="batches of all ranks")
    parser.add_argument("--batch", type=int, default=8, help="samples of a rank in a batch")
    parser.add_argument("--accumulate", type=int, default=2, help="batches of a step of the optimizer")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--save-every", type=float, default=60, help="seconds between two checkpoints")
    options = parser.parse_args()

    dist.init_process_group("gloo")  # with GPUs: "cpu:gloo,cuda:nccl", and model and batches go to cuda:LOCAL_RANK
    text = "\n".join(path.read_text() for path in options.text) if options.text else "\n".join(topics.values())
    data = Characters(text, options.length)
    torch.manual_seed(0)
    model = GPT(len(data.vocabulary), options.length, options.width, options.layers, heads=4)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    with Account(task="gpt", plan={"train": Steps(options.steps)}, seed=0) as account:
        train(options, account, data, model)
        made = sample(model, data)
        if account.rank == 0:
            print(f"sample: {made!r}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
