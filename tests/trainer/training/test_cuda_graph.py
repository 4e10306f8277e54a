"""A step that is captured and replayed trains as one that is not. The graph is the CPU's: it does the work again."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import toy
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torchtally.training.cuda_graph import Captured, Step

ROWS = 8
SAMPLES = toy.samples(103)


class Again:
    """Counts what it is asked for. Like CUDA's it does nothing when it captures."""

    def __init__(self, refuses: bool = False) -> None:
        self.done = {"warm up": 0, "capture": 0, "replay": 0}
        self._refuses = refuses

    def warm_up(self, work: Callable[[], None]) -> None:
        self.done["warm up"] += 1
        work()

    def capture(self, work: Callable[[], None]) -> None:
        if self._refuses:
            raise RuntimeError("operation not permitted\nmore that nobody reads")
        self.done["capture"] += 1
        self._work = work

    def replay(self) -> None:
        self.done["replay"] += 1
        self._work()


def _trained(captured: Callable[[Step], Step]) -> tuple[dict[str, Any], list[float]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5, fused=True)

    def step(chosen: Tensor, scale: float) -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(SAMPLES.inputs[chosen]), SAMPLES.labels[chosen], reduction="sum")
        (loss * scale).backward()
        optimizer.step()
        return loss.detach()

    taken, losses = captured(step), []
    for epoch in range(2):
        for number, chosen in enumerate(
            torch.randperm(103, generator=torch.Generator().manual_seed(epoch)).split(ROWS)
        ):
            torch.manual_seed(1000 * epoch + number)
            losses.append(taken(chosen, 1 / len(chosen)).item())
    return {name: value.tolist() for name, value in model.state_dict().items()}, losses


def test_a_captured_step_trains_as_one_that_is_not() -> None:
    graph = Again()
    assert _trained(lambda step: Captured(step, ROWS, graph, toy.CPU)) == _trained(lambda step: step)
    # 12 full batches an epoch, and one of 7 rows that is done as it is.
    assert graph.done == {"warm up": 3, "capture": 1, "replay": 2 * 12 - 3}


def test_a_step_that_cannot_be_captured_is_done_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = _trained(lambda step: Captured(step, ROWS, Again(refuses=True), toy.CPU))
    assert found == _trained(lambda step: step)
    assert capsys.readouterr().err == (
        "torchtally: the step cannot be captured in a CUDA graph, so it runs slower: operation not permitted\n"
    )
