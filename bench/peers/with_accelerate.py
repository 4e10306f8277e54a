"""The loop of the quick tour of Hugging Face's Accelerate."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from bench.peers import common


def main() -> None:
    task, dataset, clock = common.arguments()
    accelerator = Accelerator(
        cpu=not common.on_gpu(),
        mixed_precision="bf16" if common.bfloat16(task) else "no",
        dataloader_config=DataLoaderConfiguration(non_blocking=common.on_gpu()),
    )
    torch.manual_seed(0)
    net = common.model(task)
    data = DataLoader(
        dataset,
        batch_size=common.BATCH,
        shuffle=True,
        num_workers=common.workers(task),
        pin_memory=common.on_gpu(),
    )
    model, optimizer, loader = accelerator.prepare(net, common.optimizer(task, net.parameters()), data)

    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        if clock.step():
            break
    clock.report()
    accelerator.end_training()


if __name__ == "__main__":
    main()
