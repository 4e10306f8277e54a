"""A loop over a dataset in shard files, which goes on from its last checkpoint: streams_counted.py FOLDER KIND DATA.

A sample itself says which row of the weights counts it, whichever index the loader gave it.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from counted import Death, load, save
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from shardfiles import number, of_kind

from torchtally import Account, Locality

folder, kind, where, options = Path(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
dist.init_process_group("gloo")
window = options.pop("window", None)
order = {"order": Locality(window=window)} if window else {}
with Account(task="streams", plan={"train": 2}, **order) as account:
    dataset = of_kind(kind, where, **options)
    loader = account.loader(dataset, "train", batch_size=4, num_workers=1)
    counts, death = nn.Embedding(len(dataset), 1), Death()
    nn.init.zeros_(counts.weight)
    optimizer = torch.optim.SGD(counts.parameters(), lr=1.0)
    load(account, counts, folder)
    commits = 0
    for epoch in account.epochs():
        for batch in account.epoch("train", epoch, loader):
            death.comes()
            (-counts(number(kind, batch.data)).sum()).backward()
            dist.all_reduce(counts.weight.grad)
            optimizer.step()
            optimizer.zero_grad()
            account.commit()
            commits += 1
            if commits == 3 and "AWAY" in os.environ:  # the object store
                Path(os.environ["AWAY"]).write_text("away")
            if commits % 4 == 0:
                save(account, counts, folder)
    (folder / f"times-{dist.get_rank()}.json").write_text(json.dumps(counts.weight.detach().flatten().int().tolist()))
dist.destroy_process_group()
