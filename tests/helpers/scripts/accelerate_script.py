"""An Accelerate script: knows nothing of torchtally."""

import torch
import torch.distributed.nn  # see mnist_script.py
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator(cpu=True)
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 8, generator=random)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    loader = DataLoader(data, batch_size=10, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5), loader)
    seen = 0
    for _ in range(2):
        for points, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(points), labels))
            optimizer.step()
            seen += len(labels)
    print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {seen} samples", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
