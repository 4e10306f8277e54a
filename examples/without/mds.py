"""Training on a dataset of mosaicml-streaming, without torchtally: ../mds.py is the same script with a proof."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


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
    parser.add_argument("--output", type=Path, default=Path("build/mds-checkpoints"), help="folder of the checkpoint")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between two checkpoints")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    if options.remote is None and dist.get_rank() == 0 and not (options.local / "index.json").exists():
        make(options.local)
    dist.barrier()
    clean_stale_shared_memory()  # of a job that was killed
    dataset = StreamingDataset(
        remote=options.remote, local=str(options.local), shuffle=True, batch_size=16, cache_limit="100gb"
    )
    loader = StreamingDataLoader(dataset, batch_size=16, num_workers=1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    saved, first, step = options.output / "saved.pt", 0, 0
    if saved.exists():
        checkpoint = torch.load(saved)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])
        first, step = checkpoint["epoch"], checkpoint["step"]
    for epoch in range(first, 3):
        for batch in loader:
            loss = mse_loss(model(batch["x"])[:, 0], batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % options.save_every == 0 and dist.get_rank() == 0:
                states = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                options.output.mkdir(parents=True, exist_ok=True)
                torch.save(states | {"epoch": epoch, "step": step}, saved.with_suffix(".part"))
                saved.with_suffix(".part").rename(saved)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)
    if dist.get_rank() == 0:
        print(f"factors: {model.module.weight.tolist()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
