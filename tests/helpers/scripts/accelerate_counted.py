"""Accelerate with an account: goes on from the last checkpoint, in the middle of an epoch.

accelerate_counted.py FOLDER [batches of a step] [what is left out or otherwise]
"""

import sys

import torch.distributed as dist
from accelerate import Accelerator
from counted import DATA, EPOCHS, SIZE, WORKERS, Death, Model, drops, own, report, scaler

from torchtally import Account
from torchtally.integrations.accelerate import marked

folder = own(sys.argv[1])
accumulate = int(sys.argv[2]) if len(sys.argv) > 2 else 1
how = sys.argv[3] if len(sys.argv) > 3 else ""
dist.is_initialized() or dist.init_process_group("gloo")
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
with Account(task="counted", plan={"train": EPOCHS}) as account:
    model, death = Model(how == "overflows"), Death()
    loader = account.loader(
        DATA, "train", batch_size=SIZE, num_workers=WORKERS, collate_fn=drops if how == "drops" else None
    )
    loader = accelerator.prepare(loader)  # which leaves it as it is
    if how != "not registered":
        accelerator.register_for_checkpointing(account)
    if how == "overflows":
        accelerator.scaler = scaler()
    model, optimizer = accelerator.prepare(model, model.optimizer())
    account.optimizer(optimizer)
    saved = account.resume_from(max(folder.glob("step-*"), default=None))
    if saved and how != "not loaded":
        accelerator.load_state(saved)
    steps = int(saved.name.partition("-")[2]) if saved else 0
    for _ in account.epochs():
        given = accelerator.skip_first_batches(loader, 2) if how == "skips" and saved else loader
        for number, batch in enumerate(loader if how == "unmarked" else marked(accelerator, given)):
            death.comes()
            with accelerator.accumulate(model):
                accelerator.backward(account.weigh(model(*batch)))
                if how == "skips late" and number == 1:
                    optimizer.zero_grad()
                    account.skip("the loss is not finite")
                    continue
                optimizer.step()
                if how == "saves early" and accelerator.sync_gradients and steps % 3 == 2:
                    accelerator.save_state(folder / f"step-{steps + 1:03}")
                    accelerator.wait_for_everyone()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                steps += 1
                if account.asked_to_stop() or (steps % 3 == 0 and how != "saves early"):
                    accelerator.save_state(folder / f"step-{steps:03}")
                    accelerator.wait_for_everyone()  # rank 0 writes, and the other could die before the end of that
    report(accelerator.unwrap_model(model), sys.argv[1])
accelerator.end_training()
