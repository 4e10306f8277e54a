"""The products whose speed is a limit are those of the model's own step, and so are the bytes of its gradient."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from bench.limit import PARTS
from bench.measure import products
from bench.peers import common


@pytest.fixture(params=PARTS)
def task(request: pytest.FixtureRequest) -> str:
    if request.param == "keras-mnist":
        pytest.importorskip("bench.peers.keras_model")
    return str(request.param)


def test_operations_are_those_that_the_models_own_step_counts(task: str) -> None:
    model = common.model(task)
    shape = (common.BATCH, 28, 28, 1) if task == "keras-mnist" else (common.BATCH, 1, 28, 28)
    with FlopCounterMode(display=False) as counter:
        cross_entropy(model(torch.rand(shape)), torch.zeros(common.BATCH, dtype=torch.int64)).backward()
    assert products.operations(task) == counter.get_total_flops()
    assert PARTS[task].gradient == sum(each.grad.nbytes for each in model.parameters() if each.grad is not None)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_operations_are_those_that_the_bare_step_makes(task: str, layout: torch.memory_format) -> None:
    step = products.step_of(task, layout)
    with FlopCounterMode(display=False) as counter:
        step()
    assert products.operations(task) == counter.get_total_flops()
