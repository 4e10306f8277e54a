"""MNIST under DDP with a plain DistributedSampler, one rank's part of 2000 samples: knows nothing of torchtally.

mnist_script.py FOLDER    with the training files, packed or not
"""

import gzip
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group, which it would keep: its threads can abort Python's end
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def read(folder: Path, name: str, header: int) -> torch.Tensor:
    (path,) = folder.glob(f"{name}*")
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).copy())


def main() -> None:
    dist.init_process_group()  # by the environment alone
    torch.manual_seed(0)
    folder = Path(sys.argv[1])
    images = read(folder, "train-images-idx3-ubyte", 16).view(-1, 784)[:2000].float() / 255
    labels = read(folder, "train-labels-idx1-ubyte", 8)[:2000].long()
    dataset = TensorDataset(images, labels)
    model = DistributedDataParallel(nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=50, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = 0
        for pixels, digits in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(pixels), digits)
            loss.backward()
            optimizer.step()
            seen += len(digits)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {seen} samples, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
