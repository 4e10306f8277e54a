"""The loop of PyTorch's tutorials and of most blogs: DataLoader, DistributedSampler, DistributedDataParallel."""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from bench.peers import common


def main() -> None:
    task, dataset, clock = common.arguments()
    device = common.device()
    dist.init_process_group(common.backend())
    torch.manual_seed(0)
    sampler = DistributedSampler[Any](dataset)
    loader = DataLoader(dataset, batch_size=common.BATCH, sampler=sampler, pin_memory=common.on_gpu())
    model = DistributedDataParallel(common.model(task).to(device))
    optimizer = common.optimizer(task, model.parameters())

    model.train()
    sampler.set_epoch(0)
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if clock.step():
            break
    clock.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
