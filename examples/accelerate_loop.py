"""A loop with Accelerate and a proof. Killed with signal 9, it resumes at the sample where its weights stand.

torchtally run -- python examples/accelerate_loop.py       on this machine, or as the command of a PyTorchJob

without/accelerate_loop.py is the same script without torchtally.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed.nn  # imported after the group it would keep the group, whose threads can abort at exit
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from torchtally import Account
from torchtally.integrations.accelerate import marked

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
    model, optimizer = accelerator.prepare(model, optimizer)
    last = max(output.glob("step-*"), default=None)
    with Account("accelerate-loop", epochs=EPOCHS) as account:
        account.optimizer(optimizer)
        loader = account.loader(waves(2000), batch_size=25, num_workers=1)
        accelerator.register_for_checkpointing(account)
        last = account.resume_from(last)
        if last:
            accelerator.load_state(str(last))
        step = int(last.name.partition("-")[2]) if last else 0
        for _ in account.epochs():
            for points, heights in marked(accelerator, loader):
                with accelerator.accumulate(model):
                    loss = mse_loss(model(points)[:, 0], heights)
                    accelerator.backward(account.weigh(loss))
                    optimizer.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    step += 1
                    if step % 8 == 0 or account.asked_to_stop():
                        save(accelerator, output, step)
            accelerator.print(f"{step} steps so far", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
