"""A mixture, packed rows, and a collate_fn that drops, which go on from their last checkpoint: mixed_counted.py FOLDER.

Each sample, and each token of a packed document, says itself which row of the weights counts it.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from counted import Death, load, save
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from mixtures import PHASES, of_phase

from torchtally import Account

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
with Account(task="mixed", plan={name: phase.epochs for name, phase in PHASES.items()}) as account:
    loaders = {
        name: account.loader(phase.dataset(), name, batch_size=4, num_workers=1, **phase.options)
        for name, phase in PHASES.items()
    }
    counts = nn.ModuleDict({name: nn.Embedding(phase.counted, 1) for name, phase in PHASES.items()})
    death, commits = Death(), 0
    for each in counts.values():
        nn.init.zeros_(each.weight)
    optimizer = torch.optim.SGD(counts.parameters(), lr=1.0)
    load(account, counts, folder)
    for epoch in account.epochs():
        for name, phase in PHASES.items():
            if epoch > phase.epochs:
                continue
            for batch in account.epoch(name, epoch, loaders[name]):
                death.comes()
                (-counts[name](of_phase(name, batch.data)).sum()).backward()
                dist.all_reduce(counts[name].weight.grad)
                optimizer.step()
                optimizer.zero_grad()
                account.commit()
                commits += 1
                if commits % 4 == 0:
                    save(account, counts, folder)
    times = {name: each.weight.detach().flatten().int().tolist() for name, each in counts.items()}
    (folder / f"times-{dist.get_rank()}.json").write_text(json.dumps(times))
dist.destroy_process_group()
