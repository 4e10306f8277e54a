"""The loop of gpt_blog.py with an account and checkpoints: a proof of its samples, and a save a minute."""

import tempfile

import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_

from bench.peers import common, gpt
from torchtally import Account, Steps


def main() -> None:
    task, dataset, clock = gpt.arguments()
    device = common.device()
    dist.init_process_group(common.backend())
    model = gpt.parallel(task, gpt.model().to(device))
    optimizer = gpt.optimizer(model)
    schedule = gpt.schedule(optimizer, clock.steps)
    told = [tempfile.mkdtemp()]
    dist.broadcast_object_list(told)

    model.train()
    with Account(task=task, plan={"train": Steps(clock.steps)}, seed=0) as account:
        loader = account.loader(
            dataset, "train", batch_size=gpt.BATCH, contract="drop_last", pin_memory=common.on_gpu()
        )
        saved = {"model": model, "optimizer": optimizer, "schedule": schedule}
        account.checkpoints(told[0], saved, every=60).resume()
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                optimizer.zero_grad()
                with gpt.autocast(task):
                    loss = gpt.loss(model, batch.data.to(device, non_blocking=True))
                loss.backward()
                clip_grad_norm_(model.parameters(), gpt.CLIPPED)
                optimizer.step()
                schedule.step()
                account.commit()
                clock.step()
    clock.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
