"""A GPT by the loop of PyTorch's tutorials of DDP and of FSDP2."""

from typing import Any

import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from bench.peers import common, gpt


def main() -> None:
    task, dataset, clock = gpt.arguments()
    device = common.device()
    dist.init_process_group(common.backend())
    sampler = DistributedSampler[Any](dataset)
    loader = DataLoader(dataset, batch_size=gpt.BATCH, sampler=sampler, pin_memory=common.on_gpu())
    model = gpt.parallel(task, gpt.model().to(device))
    optimizer = gpt.optimizer(model)
    schedule = gpt.schedule(optimizer, clock.steps)

    model.train()
    sampler.set_epoch(0)
    for tokens in loader:
        optimizer.zero_grad()
        with gpt.autocast(task):
            loss = gpt.loss(model, tokens.to(device, non_blocking=True))
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
