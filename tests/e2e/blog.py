"""A training as blogs on PyTorchJobs have it: one process for each device of a pod by mp.spawn, and ranks by hand.

The mistakes are those that such programs make.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


def train(local_rank, args):
    pods, pod = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    world_size = pods * args.processes
    rank = pod * args.processes + local_rank
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    torch.set_num_threads(1)

    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    dataset = datasets.FashionMNIST(args.data, train=True, transform=transforms.ToTensor(), download=True)
    sampler = None
    if args.mistake != "no-sampler":
        shard = local_rank if args.mistake == "local-rank" else rank
        seed = rank if args.mistake == "seed" else 0
        sampler = DistributedSampler(dataset, num_replicas=world_size, rank=shard, seed=seed)
    loader = DataLoader(dataset, args.batch_size, shuffle=sampler is None, sampler=sampler)

    for epoch in range(args.epochs):
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1} of {args.epochs}: loss {loss.item():.4f}")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--data", default="/data")
    parser.add_argument("--mistake", choices=["no-sampler", "seed", "local-rank"])
    args = parser.parse_args()
    mp.spawn(train, args=(args,), nprocs=args.processes)


if __name__ == "__main__":
    main()
