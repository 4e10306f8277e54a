"""AdamW of image-folder: PyTorch's own, to the bit, and without copies of gradients that are channels last."""

import copy

import pytest
import torch
from torch import nn
from torch.profiler import profile

from torchtally.tasks.image_folder.adamw import AdamW


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 1, bias=False), nn.Conv2d(6, 4, 3, groups=2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 4 * 4, 5))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_its_weights_and_state_are_those_of_pytorch(layout: torch.memory_format) -> None:
    one = net().to(memory_format=layout)
    other = copy.deepcopy(one)
    own = AdamW(one.parameters(), lr=0.01, weight_decay=0.05)
    torchs = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.05, fused=True)
    train(one, own, 3)
    train(other, torchs, 3)
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for name, value in torchs.state[theirs].items():
            assert torch.equal(own.state[mine][name], value)
            assert own.state[mine][name].stride() == value.stride()


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    model = net().to(memory_format=torch.channels_last)
    first, *_, last = (each for each in model.parameters() if each.ndim > 1)
    before = first.detach().clone()
    first.requires_grad_(False)
    moved = last.detach().clone()
    train(model, AdamW(model.parameters(), lr=0.01, weight_decay=0.05), 1)
    assert torch.equal(first, before)
    assert not torch.equal(last, moved)


def test_no_gradient_is_copied() -> None:
    model = net().to(memory_format=torch.channels_last)
    optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.05)
    train(model, optimizer, 1)
    with profile() as step:
        optimizer.step()
    names = {each.key for each in step.key_averages()}
    assert "aten::_fused_adamw_" in names
    assert "aten::clone" not in names
