"""A loop with Accelerate, without torchtally: ../accelerate_loop.py is the same script with a proof."""

import argparse
import math
from pathlib import Path

import torch
import torch.distributed.nn  # imported after the group it would keep the group, whose threads can abort at exit
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4


def waves(n: int) -> TensorDataset:
    """Points in the plane (n, 2), and the height of a surface over each (n)."""
    points = 6 * torch.rand(n, 2, generator=torch.Generator().manual_seed(0)) - 3
    return TensorDataset(points, points[:, 0].sin() * points[:, 1].cos())


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Save the state under a name that only whole checkpoints have."""
    accelerator.save_state(str(folder / "part"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "part").rename(folder / f"step-{step:06}")
    accelerator.wait_for_everyone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/accelerate"), help="folder of the checkpoints")
    output = parser.parse_args().output
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(waves(2000), batch_size=25, shuffle=True, num_workers=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    last = max(output.glob("step-*"), default=None)
    if last:
        accelerator.load_state(str(last))
    step = int(last.name.partition("-")[2]) if last else 0
    steps = math.ceil(len(loader) / accelerator.gradient_accumulation_steps)  # of an epoch
    done, skipped = step // steps, step % steps * accelerator.gradient_accumulation_steps
    for epoch in range(done, EPOCHS):
        loader.set_epoch(epoch)
        left = accelerator.skip_first_batches(loader, skipped) if epoch == done else loader
        for points, heights in left:
            with accelerator.accumulate(model):
                loss = mse_loss(model(points)[:, 0], heights)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                if step % 8 == 0:
                    save(accelerator, output, step)
        accelerator.print(f"{step} steps so far", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
