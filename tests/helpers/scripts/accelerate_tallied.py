"""The same Accelerate script with a tally around its loader, which is not prepared."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from torchtally import TalliedSampler


def main() -> None:
    accelerator = Accelerator(cpu=True)
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 8, generator=random)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    sampler = TalliedSampler(data, epochs=2)
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    seen = 0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for points, labels in sampler.tally(loader):
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(points), labels))
            optimizer.step()
            sampler.commit()
            seen += len(labels)
    print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {seen} samples", flush=True)
    sampler.done()
    accelerator.end_training()


if __name__ == "__main__":
    main()
