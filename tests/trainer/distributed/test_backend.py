"""Gradients of GPUs over gloo are slow, and no library says so: the account does."""

import pytest
import torch
from accounts import run
from torch._subclasses import FakeTensorMode

from torchtally import Account


def names(device: str) -> None:
    """The optimizer of a model on a device that is not there."""
    with FakeTensorMode():
        weights = torch.nn.Parameter(torch.empty(2, device=device))
    with Account("t", epochs=1) as account:
        for _ in range(2):
            account.optimizer(torch.optim.SGD([weights]))
        account.stop("enough")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_model_on_gpus_without_nccl_is_said_once(device: str) -> None:
    errors = "".join(each["err"] for each in run(2, names, device))
    assert errors.count('call init_process_group("cpu:gloo,cuda:nccl")') == (device == "cuda")
