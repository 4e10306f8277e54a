"""The same Lightning script with an account."""

import torch.distributed as dist
from lightning_script import Classifier, points, train

from torchtally import Account
from torchtally.accounting.loader import Loader
from torchtally.integrations.lightning import AccountCallback


class Tallied(Classifier):
    def __init__(self, account: Account) -> None:
        super().__init__()
        self.account = account

    def train_dataloader(self) -> Loader:
        return self.account.loader(points(), "train", batch_size=10)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with Account(task="lightning", plan={"train": 2}) as account:
        train(Tallied(account), callbacks=[AccountCallback(account)])
    dist.destroy_process_group()  # see lightning_script.py
