"""Mistakes that people make: each is a fault with its ranks, its share, its cause, and what to do."""

from pathlib import Path

import observed_programs as programs
import pytest

SAMPLER = "pass sampler=DistributedSampler(dataset)"
MISTAKES = {
    "no sampler": (
        "setup(); train(DataLoader(data(), 20, shuffle=True))",
        [f"each rank is handed all 1000 samples in the same order, and no sampler divides them: {SAMPLER}"],
    ),
    "no sampler, other orders": (
        """
rank, world = setup()
dataset = data()
train(DataLoader(dataset, 20, shuffle=True, generator=torch.Generator().manual_seed(rank)))
""",
        ["each rank is handed all 1000 samples, and no sampler divides them"],
    ),
    "no sampler, augmented": (
        """
class Augmented(Dataset):
    def __init__(self): self.data = data()
    def __len__(self): return N
    def __getitem__(self, index): return self.data[index][0] + torch.randn(4), self.data[index][1]
setup(); train(DataLoader(Augmented(), 20, shuffle=True))
""",
        ["each rank is handed all 1000 samples"],
    ),
    "seeds by rank": (
        """
rank, world = setup()
sampler = DistributedSampler(data(), seed=100 + rank)
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch)
""",
        ["240 of 1000 samples go to no rank", "the samplers of ranks 0 and 1 have seeds 100 and 101"],
    ),
    "epochs by rank": (
        """
rank, world = setup()
sampler = DistributedSampler(data())
train(DataLoader(data(), 20, sampler=sampler), before=lambda epoch: sampler.set_epoch(epoch + rank))
""",
        ["samples go to no rank", "the samplers of ranks 0 and 1 are at epochs 0 and 1"],
    ),
    "one rank for all": (
        """
setup()
sampler = DistributedSampler(data(), num_replicas=2, rank=0)
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch)
""",
        ["all ranks are handed the same 500 samples in the same order, and 500 of 1000", "looks like the local rank"],
    ),
    "sharded twice": (
        """
rank, world = setup()
mine = Subset(data(), range(rank, N, world))
sampler = DistributedSampler(mine)
train(DataLoader(mine, 20, sampler=sampler), before=sampler.set_epoch)
""",
        ["500 of 1000 samples go to no rank: sharded twice"],
    ),
    "sharded twice by Accelerate": (
        """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
loader = accelerator.prepare(DataLoader(data(), 10, sampler=DistributedSampler(data())))
train(loader)
""",
        ["500 of 1000 samples go to no rank: sharded twice, by DistributedSampler and by BatchSamplerShard"],
    ),
    "a split for each rank": (
        """
setup()
training, test = random_split(data(), [0.9, 0.1], generator=torch.Generator().manual_seed(dist.get_rank()))
sampler = DistributedSampler(training)
train(DataLoader(training, 20, sampler=sampler), before=sampler.set_epoch, test=DataLoader(test, 20))
""",
        ["as if each rank had drawn a split of its own", "% of the samples that rank", "trained on by other ranks"],
    ),
    "seeds by rank in an evaluation": (
        """
rank, world = setup()
sampler, test = DistributedSampler(data()), data(203)
divided = DistributedSampler(test, seed=rank)
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch, test=DataLoader(test, 50, sampler=divided))
""",
        ["are evaluated by no rank", "have seeds 0 and 1"],
    ),
    "seeds by rank in a part of an epoch": (
        """
rank, world = setup()
sampler = DistributedSampler(data(), seed=rank)
class One:
    def __init__(self, loader): self.loader = loader
    def __iter__(self): return iter([next(iter(self.loader))])
train(One(DataLoader(data(), 5, sampler=sampler)), epochs=1)
""",
        ["go to more than one rank: the samplers of ranks 0 and 1 have seeds 0 and 1"],
    ),
    "sharded twice in a part of an epoch": (
        """
rank, world = setup()
mine = Subset(data(), range(rank, N, world))
sampler = DistributedSampler(mine)
class One:
    def __init__(self, loader): self.loader = loader
    def __iter__(self): return iter([next(iter(self.loader))])
train(One(DataLoader(mine, 5, sampler=sampler)), epochs=1)
""",
        ["a whole pass hands out about 500 of 1000 samples: sharded twice"],
    ),
    "one half of the test samples on all ranks": (
        """
setup()
sampler, test = DistributedSampler(data()), data(200)
half = DistributedSampler(test, num_replicas=2, rank=0, shuffle=False)
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch, test=DataLoader(test, 50, sampler=half))
""",
        ["ranks evaluate the same samples in the same order, and 100 of 200 samples are evaluated by no rank"],
    ),
    "test samples that are sharded twice": (
        """
rank, world = setup()
sampler, test = DistributedSampler(data()), Subset(data(200), range(rank, 200, world))
half = DistributedSampler(test, shuffle=False)
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch, test=DataLoader(test, 10, sampler=half))
""",
        ["100 of 200 samples are evaluated by no rank: sharded twice, as each rank holds a part of its own"],
    ),
    "the same tail is never handed out": (
        """
setup()
dataset = data(1013)
sampler = DistributedSampler(dataset, shuffle=False, drop_last=True)
train(DataLoader(dataset, 20, sampler=sampler, drop_last=True))
""",
        ["the same 13 of 1013 samples are handed out in no pass"],
    ),
}


@pytest.mark.parametrize(("program", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_a_fault(tmp_path: Path, program: str, said: list[str]) -> None:
    ended = programs.run(tmp_path, program)
    assert ended.codes == [0, 0], ended.err
    faults = "\n".join(ended.faults)
    assert all(text in faults for text in said), faults
    assert ended.observation.outcome == "faulty"


LOCAL = """
rank, world = setup()
local = int(os.environ["LOCAL_RANK"])
sampler = DistributedSampler(data(), num_replicas={replicas}, rank=local)
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch)
"""


@pytest.mark.parametrize("replicas", [2, 4])
def test_the_local_rank_in_place_of_the_rank_is_a_fault(tmp_path: Path, replicas: int) -> None:
    ended = programs.run(tmp_path, LOCAL.format(replicas=replicas), ranks=4, local=2)
    [fault] = ended.faults
    assert "in the same order to ranks 0 and 2; ranks 1 and 3" in fault
    assert "have rank 0, 1, 0, and 1" in fault and "looks like the local rank" in fault
    assert ("500 of 1000 samples go to no rank" in fault) == (replicas == 4)


def test_a_share_of_many_samples_comes_with_its_error(tmp_path: Path) -> None:
    program = """
rank, world = setup()
sampler = DistributedSampler(data(60000), seed=rank)
for batch in DataLoader(data(60000), 1000, sampler=sampler): pass
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
for batch in DataLoader(data(60000), 1000, sampler=sampler): optimizer.step()
"""
    ended = programs.run(tmp_path, program)
    [fault] = [each for each in ended.faults if "go to no rank" in each]
    assert "% (± 3) of the samples go to no rank" in fault  # a quarter
    share = int(fault.partition("about ")[2].partition(" %")[0])
    assert 21 <= share <= 29
