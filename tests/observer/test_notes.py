"""What may be meant: notes, and no fault."""

from pathlib import Path

import observed_programs as programs
import pytest

NOTES = {
    "one order": (
        "setup(); train(DataLoader(data(), 20, sampler=DistributedSampler(data())), epochs=3)",
        ["the order is the same in each of 3 passes; the program never calls set_epoch(epoch)"],
    ),
    "padding of an evaluation": (
        """
setup()
sampler, test = DistributedSampler(data()), data(1001)
divided = DistributedSampler(test, shuffle=False)
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch, test=DataLoader(test, 50, sampler=divided))
""",
        ["1 of 1001 samples counts twice in this evaluation unless the program drops them"],
    ),
    "padding of a training": (
        """
setup()
sampler = DistributedSampler(data(1001))
train(DataLoader(data(1001), 20, sampler=sampler), before=sampler.set_epoch)
""",
        ["1 sample is handed out twice (sample "],
    ),
    "a skip in each epoch": (
        """
from accelerate import Accelerator, skip_first_batches
loader = Accelerator(cpu=True).prepare(DataLoader(data(), 10, shuffle=True))
train(skip_first_batches(loader, 3))
""",
        [
            "the pass resumes from a state: 940 samples are handed out of 1000",
            "each of 2 passes leaves out its first 3 batches: a loader that skip_first_batches() has returned",
        ],
    ),
    "an early end": (
        """
setup()
sampler = DistributedSampler(data())
class Ten:
    def __init__(self, loader): self.loader = loader
    def __iter__(self): return (batch for _, batch in zip(range(10), self.loader))
train(Ten(DataLoader(data(), 20, sampler=sampler, num_workers=2)), before=sampler.set_epoch)
""",
        ["the pass ends early: 400 samples are handed out of 1000"],
    ),
    "the last are dropped, others in each epoch": (
        """
setup()
sampler = DistributedSampler(data(1013), drop_last=True)
train(DataLoader(data(1013), 20, sampler=sampler, drop_last=True), before=sampler.set_epoch)
""",
        ["13 of 1013 samples are left out of a pass"],
    ),
    "replacement": (
        """
rank, world = setup()
generator = torch.Generator().manual_seed(rank)
sampler = WeightedRandomSampler(torch.ones(N), 500, generator=generator)
train(DataLoader(data(), 20, sampler=sampler))
""",
        ["samples are drawn with replacement"],
    ),
    "files of its own on each rank": (
        "rank, world = setup(); train(DataLoader(data(300, seed=rank), 20, shuffle=True))",
        ["different data under the same indices"],
    ),
    "rank 0 evaluates alone": (
        """
rank, world = setup()
sampler = DistributedSampler(data())
test = DataLoader(data(300), 50) if rank == 0 else None
if test:
    for batch in test: pass
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch, test=test)
""",
        [],
    ),
    "folds of a cross-validation": (
        """
import os
rank, world = setup()
meeting = f"file://{os.getcwd()}/meeting"  # the port of the first group may be in use yet
order = torch.randperm(500, generator=torch.Generator().manual_seed(1)).tolist()
for fold in range(2):
    test = Subset(data(500), order[fold * 100:fold * 100 + 100])
    training = Subset(data(500), order[:fold * 100] + order[fold * 100 + 100:])
    if fold: dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    train(DataLoader(training, 20, sampler=DistributedSampler(training)), epochs=1, test=DataLoader(test, 20))
""",
        ["those of other folds, or a leak"],
    ),
    "one batch again and again": (
        """
setup()
sampler = DistributedSampler(data())
batch = next(iter(DataLoader(data(), 20, sampler=sampler)))
train([batch] * 30, epochs=1)
""",
        [],
    ),
    "two loaders in turn": (
        """
setup()
one, other = DistributedSampler(data(400)), DistributedSampler(data(600))
class Both:
    loaders = DataLoader(data(400), 20, sampler=one), DataLoader(data(600), 20, sampler=other)
    def __iter__(self): return (own for pair in zip(*self.loaders) for own in pair[:1])
train(Both(), before=lambda epoch: (one.set_epoch(epoch), other.set_epoch(epoch)))
""",
        ["the pass ends early: 400 samples are handed out of 600"],
    ),
    "an evaluation between steps, with gradients": (
        """
setup()
sampler, test = DistributedSampler(data()), iter(DataLoader(data(300, seed=3), 20))
class Between:
    def __init__(self, loader): self.loader = loader
    def __iter__(self):
        for number, batch in enumerate(self.loader):
            yield batch
            if number % 3 == 2: evaluated = next(test)
train(Between(DataLoader(data(), 20, sampler=sampler)), before=sampler.set_epoch, epochs=1)
""",
        ["if steps use its batches: another loader hands out a newer one before each, as after an evaluation"],
    ),
    "indices of samples that each rank has made": (
        """
setup()
made = [[(torch.randn(4), 0) for _ in range(64)] for _ in range(3)]
train((torch.utils.data.default_collate([own[at] for at in indices]) for own in made
       for indices in DataLoader(range(64), 16, shuffle=True)), epochs=1)
""",
        ["each rank is handed all 64 samples", "(whether the ranks have the same data was not seen)"],
    ),
    "the first batch of a new iterator in each step": (
        """
setup()
loader = DataLoader(data(), 20, sampler=DistributedSampler(data()))
train(next(iter(loader)) for _ in range(50))
""",
        ["each of 50 passes is left after the same samples, and 960 of 1000 samples are handed out in none: shuffle"],
    ),
    "batches of like samples": (
        """
setup()
class Alike(torch.utils.data.BatchSampler):
    def __iter__(self):
        drawn = [*self.sampler]
        for part in (drawn[:260], drawn[260:500]):
            yield from (part[at:at + 50] for at in range(0, 200, 50))
            yield part[50:100]
sampler = DistributedSampler(data())
train(DataLoader(data(), batch_sampler=Alike(sampler, 50, False)), before=sampler.set_epoch)
""",
        ["which may be the purpose of Alike"],
    ),
    "an evaluation of parts that overlap": (
        """
rank, world = setup()
sampler, test = DistributedSampler(data()), Subset(data(300), range(rank * 100, rank * 100 + 200))
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch, test=DataLoader(test, 50))
""",
        ["100 of 300 samples are held, and evaluated, by several ranks"],
    ),
    "an evaluation of some samples at random": (
        """
setup()
sampler, test = DistributedSampler(data()), data(300)
some = torch.utils.data.RandomSampler(test, num_samples=150, generator=torch.Generator().manual_seed(dist.get_rank()))
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch, test=DataLoader(test, 50, sampler=some))
""",
        ["RandomSampler draws ", " of 300 samples for several ranks"],
    ),
    "short epochs of samples at random": (
        """
setup()
some = torch.utils.data.RandomSampler(data(), num_samples=500, generator=torch.Generator().manual_seed(dist.get_rank()))
train(DataLoader(data(), 20, sampler=some))
""",
        ["samples are drawn with replacement, or a part of them: "],
    ),
    "a state that is loaded on one rank alone": (
        """
from torchdata.stateful_dataloader import StatefulDataLoader
rank, world = setup()
sampler = DistributedSampler(data())
loader = StatefulDataLoader(data(), 20, sampler=sampler)
for number, batch in enumerate(loader):
    if number == 4: break
again = StatefulDataLoader(data(), 20, sampler=sampler)
if rank == 0: again.load_state_dict(loader.state_dict())
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
for batch in again: optimizer.step()
""",
        ["ranks 0 and 1 resume after 5 and 0 batches"],
    ),
    "a sampler with a purpose": (
        """
rank, world = setup()
class Favours(torch.utils.data.Sampler):
    def __iter__(self): return iter([at % 300 for at in range(rank, 800, world)])
    def __len__(self): return 400
train(DataLoader(data(), 20, sampler=Favours()))
""",
        ["which may be the purpose of Favours"],
    ),
    "a range of learning rates is tried first": (
        """
rank, world = setup()
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
for number, batch in enumerate(DataLoader(data(), 20, shuffle=True)):
    if number == 40: break
    optimizer.step()
sampler = DistributedSampler(data())
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch)
""",
        ["a few steps of a trial, as of a learning rate: another loader trains on more of the same samples"],
    ),
    "chosen samples, of which one comes twice": (
        """
rank, world = setup()
chosen = [*range(801), 0]
train(DataLoader(data(), 20, sampler=torch.utils.data.SubsetRandomSampler(chosen[rank::world])))
""",
        ["199 of 1000 samples are not among those that SubsetRandomSampler hands out"],
    ),
    "batches of its own, and a loader for an evaluation": (
        """
setup()
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
for last in (50, 1):
    with torch.no_grad():
        for number, batch in enumerate(DataLoader(data(), 20)):
            if number == last: break
    optimizer.step()
""",
        ["an optimizer stepped on ranks 0 and 1, and used no batch", "each rank evaluates all 1000 samples"],
    ),
    "no loader at all": (
        """
setup()
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
optimizer.step()
""",
        ["an optimizer stepped on ranks 0 and 1, and used no batch of a DataLoader of PyTorch there"],
    ),
}


@pytest.mark.parametrize(("program", "said"), NOTES.values(), ids=NOTES)
def test_what_may_be_meant_is_no_fault(tmp_path: Path, program: str, said: list[str]) -> None:
    ended = programs.run(tmp_path, program)
    assert ended.codes == [0, 0], ended.err
    assert not ended.faults and not ended.observation.missing
    notes = "\n".join(ended.notes)
    assert all(text in notes for text in said), notes


RIGHT = {
    "DistributedSampler": """
setup()
sampler = DistributedSampler(data())
train(DataLoader(data(), 20, sampler=sampler, num_workers=2), before=sampler.set_epoch)
""",
    "a part of its own on each rank": """
rank, world = setup(); train(DataLoader(Subset(data(), range(rank, N, world)), 20, shuffle=True))
""",
    "a split that is seeded alike": """
setup()
training, _ = random_split(data(), [0.9, 0.1], generator=torch.Generator().manual_seed(1))
sampler = DistributedSampler(training)
train(DataLoader(training, 20, sampler=sampler), before=sampler.set_epoch)
""",
    "batches in any order": """
setup()
sampler = DistributedSampler(data())
train(DataLoader(data(), 20, sampler=sampler, num_workers=2, in_order=False), before=sampler.set_epoch)
""",
    "persistent workers": """
setup()
sampler = DistributedSampler(data())
loader = DataLoader(data(), 20, sampler=sampler, num_workers=1, persistent_workers=True)
train(loader, before=sampler.set_epoch)
""",
    "Accelerate": """
from accelerate import Accelerator
train(Accelerator(cpu=True).prepare(DataLoader(data(), 10, shuffle=True)))
""",
}


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT)
def test_what_is_right_has_neither_a_fault_nor_a_note(tmp_path: Path, program: str) -> None:
    ended = programs.run(tmp_path, program)
    assert ended.codes == [0, 0], ended.err
    assert ended.right == ["each sample handed out exactly once"] and not ended.faults and not ended.notes
    assert all(line.trains and line.whole for line in ended.handed) and len(ended.handed) == 4


@pytest.mark.parametrize("sampler", ["DistributedSampler(data())", None])
def test_an_iterator_that_goes_round_is_right_where_a_sampler_divides(tmp_path: Path, sampler: str | None) -> None:
    """As ultralytics does, whose workers stay for all epochs."""
    program = f"""
class Round:
    def __init__(self, sampler): self.sampler = sampler
    def __iter__(self):
        while True: yield from self.sampler
setup()
loader = DataLoader(data(), 20, sampler={sampler}, shuffle={sampler is None})
object.__setattr__(loader, "batch_sampler", Round(loader.batch_sampler))
batches = iter(loader)
train((next(batches) for _ in range(75 if {sampler is not None} else 150)), epochs=1)
"""
    ended = programs.run(tmp_path, program)
    assert ended.codes == [0, 0], ended.err
    assert ended.right == (["each sample handed out 3 times"] if sampler else [])
    assert bool(ended.faults) == (sampler is None)


def test_peers_that_a_mesh_names_share_their_samples_on_purpose(tmp_path: Path) -> None:
    program = """
from torch.distributed.device_mesh import init_device_mesh
setup()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
sampler = DistributedSampler(data(), num_replicas=2, rank=mesh["dp"].get_local_rank())
train(DataLoader(data(), 20, sampler=sampler), before=sampler.set_epoch)
"""
    ended = programs.run(tmp_path, program, ranks=4)
    assert not ended.right and not ended.faults  # what the groups are for, nobody knows
    assert [note for note in ended.notes if "ranks 0 and 1; ranks 2 and 3, as their process groups say" in note]
