"""A training that begins once /tmp/go is there and ends with its pod; its data is slow while /tmp/slow is there."""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchtally import Account


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if Path("/tmp/slow").exists():
            time.sleep(0.2)
        return torch.ones(4)


while not Path("/tmp/go").exists():
    time.sleep(0.1)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model, work = torch.nn.Linear(4, 1), torch.ones(300, 300)
together = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
with Account(task="slowed", plan={"train": 1}) as account:
    for batch in account.epoch("train", 1, account.loader(Data(), "train", batch_size=1)):
        for _ in range(5):
            work @ work
        optimizer.zero_grad()
        together(batch.data).sum().backward()
        optimizer.step()
        account.commit()
