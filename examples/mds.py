"""Training on a dataset of mosaicml-streaming, with a proof: each sample once an epoch, also after kill -9.

torchtally run -- python examples/mds.py                                    on a small dataset that it makes
torchtally run -- python examples/mds.py --remote s3://bucket/numbers       on one with the columns x and y
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from streaming import MDSWriter
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from torchtally import Account
from torchtally.streams.mds import MDS


def make(folder: Path) -> None:
    """Write 2000 samples: a vector x, and its product y with a fixed one, with noise."""
    random, factors = np.random.default_rng(0), np.arange(8, dtype=np.float32)
    with MDSWriter(out=str(folder), columns={"x": "ndarray:float32:8", "y": "float32"}, size_limit="8kb") as writer:
        for x in random.normal(size=(2000, 8)).astype(np.float32):
            writer.write({"x": x, "y": np.float32(x @ factors + random.normal(scale=0.1))})


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on an MDS dataset.")
    parser.add_argument("--remote", help="URL of the dataset (default: make one in the folder --local)")
    parser.add_argument("--local", type=Path, default=Path("build/mds"), help="folder of the dataset, or of its copies")
    parser.add_argument("--output", default="build/mds-checkpoints", help="folder or URL of the checkpoints")
    parser.add_argument("--save-every", type=float, default=60, help="seconds between two checkpoints")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    if options.remote is None and dist.get_rank() == 0 and not (options.local / "index.json").exists():
        make(options.local)
    dist.barrier()
    with Account(task="mds", plan={"train": 3}) as account:
        dataset = MDS(remote=options.remote, local=options.local, cache_limit="100gb")
        loader = account.loader(dataset, "train", batch_size=16, num_workers=1)
        torch.manual_seed(0)
        # Of several parameters, DDP changes the layout after the first step, and a sum's last bits with it.
        model = DistributedDataParallel(nn.Linear(8, 1, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        objects = {"model": model, "optimizer": optimizer}
        checkpoints = account.checkpoints(options.output, objects, every=options.save_every)
        checkpoints.resume()
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                error = mse_loss(model(batch.data["x"])[:, 0], batch.data["y"], reduction="sum")
                loss = error * account.world / batch.rows
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                account.commit()
            if account.rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        if dist.get_rank() == 0:
            print(f"factors: {model.module.weight.tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
