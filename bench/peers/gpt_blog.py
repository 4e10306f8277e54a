"""A GPT by the loop of PyTorch's tutorials of DDP and of FSDP2."""

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from bench.peers import gpt


def main() -> None:
    task, dataset, clock = gpt.arguments()
    dist.init_process_group("gloo")
    sampler = DistributedSampler[Any](dataset)
    loader = DataLoader(dataset, batch_size=gpt.BATCH, sampler=sampler)
    net = gpt.model()
    model = DistributedDataParallel(net) if task == "gpt-ddp" else gpt.sharded(net)
    optimizer = gpt.optimizer(model)
    schedule = gpt.schedule(optimizer, clock.steps)

    model.train()
    sampler.set_epoch(0)
    for tokens in loader:
        optimizer.zero_grad()
        with gpt.autocast(task):
            loss = gpt.loss(model, tokens)
        loss.backward()
        clip_grad_norm_(model.parameters(), gpt.CLIPPED)
        optimizer.step()
        schedule.step()
        if clock.step():
            break
    clock.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
