"""A loop of one's own that reports its numbers, waits for a file after two epochs, and loses samples in the third."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from torchtally import Account


class Line:
    fingerprint = "line"

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index / 50])


def main(epochs: int) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Account(task="line", plan={"train": epochs, "test": epochs}) as account:
        train = account.loader(Line(), "train", batch_size=5)
        test = account.loader(Line(), "test", batch_size=25, trains=False)
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, train):
                loss = mse_loss(model(batch.data), 3 * batch.data)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if epoch == 3:
                    break
                account.commit()
                account.log(loss=loss)
            for _ in account.epoch("test", epoch, test):
                pass
            account.log(accuracy=0.5)
            while epoch == 2 and not Path(os.environ["WAIT_FOR"]).exists():
                time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
