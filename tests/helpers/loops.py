"""A model whose weights tell how often each sample is in them, for loops with an account that weighs losses."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchtally import Account

N, SIZE = 22, 4  # 6 batches
Loop = Callable[..., None]


class Numbers(torch.utils.data.Dataset[int]):
    fingerprint = "numbers"

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index


class Times(nn.Module):
    """Row i of its parameter tells how often sample i is in the weights, at a learning rate of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(N))

    def forward(self, indices: Tensor) -> Tensor:
        return -self.rows[indices].sum()

    @property
    def times(self) -> list[int]:
        times: list[int] = self.rows.round().int().tolist()
        return times


def in_the_weights(loop: Loop, model: Times | None = None) -> tuple[list[int], int]:
    """How often each sample is in the weights after 2 epochs, and the samples that the proof has as dropped."""
    model = model or Times()
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    with Account(task="t", plan={"train": 2}) as account:
        account.optimizer(optimizer)
        loader = account.loader(Numbers(), "train", batch_size=SIZE)
        for _ in account.epochs():
            loop(account, loader, model, optimizer)
    assert account.last_line
    train = account.last_line["phases"]["train"]
    return model.times, train.get("dropped", 0)
