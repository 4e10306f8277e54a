"""A loop of a user's own, as DRAWN says it: it draws random numbers everywhere, accumulates, evaluates, and saves."""

import json
import os
import random
import resource
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).parents[1]))

import failpoint

from torchtally import Account


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples with noise out of three generators."""

    def __init__(self, n: int):
        self.rows = torch.randn(n, 8, generator=torch.Generator().manual_seed(n))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = random.random() + np.random.rand() + torch.rand(())
        return self.rows[index] + 0.1 * noise, self.rows[index].sum(0, keepdim=True)


def main() -> None:
    drawn, output = json.loads(os.environ["DRAWN"]), Path(os.environ["TORCHTALLY_OUTPUT"])
    failpoint.install()
    dist.init_process_group("gloo")
    Path("/proc/self/comm").write_text(f"rank {dist.get_rank()}")  # as those of a task are named
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.2), nn.ReLU(), nn.Linear(64, 1))
    parallel = DistributedDataParallel(model, find_unused_parameters=True)  # or its sums change after the first step
    optimizer = torch.optim.Adam(model.parameters())
    plan = dict.fromkeys(("train", "test"), drawn["epochs"])
    with Account(task="drawn", plan=plan, seed=drawn["seed"]) as account:
        account.optimizer(optimizer)
        train = account.loader(
            Noisy(drawn["n"]),
            "train",
            batch_size=drawn["batch_size"],
            contract=drawn["contract"],
            num_workers=drawn["workers"],
        )
        test = account.loader(Noisy(37), "test", batch_size=5, shuffle=False, trains=False)
        objects = {"model": model, "optimizer": optimizer}
        checkpoints = account.checkpoints(output / "checkpoints", objects, every=drawn["every"], keep=3)
        checkpoints.resume()
        for _ in account.epochs():
            model.train()
            pending = False
            for number, (inputs, labels) in enumerate(train, 1):
                account.weigh(mse_loss(parallel(inputs), labels)).backward()
                pending = True
                if number % drawn["accumulate"] == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                    pending = False
            if pending:
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            with torch.inference_mode():
                for inputs, _ in test:
                    model(inputs)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)  # no fault is about room for the model
    if account.rank == 0:
        torch.save(model.state_dict(), output / "model.pt")
    account.write_proof(output / "proof.json", output / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
