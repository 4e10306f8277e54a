"""The loop of the quick tour of Hugging Face's Accelerate."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.nn.functional import cross_entropy

from bench.peers import common


def main() -> None:
    task, dataset, clock = common.arguments()
    accelerator = made("bf16" if common.bfloat16(task) else "no")
    torch.manual_seed(0)
    net = common.model(task)
    data = common.shuffled(dataset, workers=common.workers(task))
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


def made(precision: str) -> Accelerator:
    """One for the device that is measured."""
    copies = DataLoaderConfiguration(non_blocking=common.on_gpu())
    return Accelerator(cpu=not common.on_gpu(), mixed_precision=precision, dataloader_config=copies)


if __name__ == "__main__":
    main()
