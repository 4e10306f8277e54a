"""The same Trainer with an account."""

import torch.distributed as dist
from trainer_script import Counting, train

from torchtally import Account
from torchtally.integrations.transformers import AccountMixin


class Tallied(AccountMixin, Counting):
    pass


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with Account(task="trainer", plan={"train": 2}) as account:
        train(Tallied, account=account)
    dist.destroy_process_group()  # see trainer_script.py
