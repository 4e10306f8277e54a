"""Hugging Face's Trainer with an account: goes on from the last checkpoint, in the middle of an epoch.

trainer_counted.py FOLDER [training arguments as JSON] [what is left out or otherwise]
"""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from counted import DATA, EPOCHS, SIZE, WORKERS, Death, Model, drops, own, report, scaler
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    DataCollatorWithFlattening,
    DefaultDataCollator,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from torchtally import Account, Batch, Steps, each_row
from torchtally.integrations.transformers import AccountMixin


class Counted(Model):
    def forward(self, indices: torch.Tensor, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": super().forward(indices, inputs)}


class Plain(Trainer):
    death = Death()

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        if how == "overflows":  # the library makes no scaler on a CPU
            self.accelerator.scaler = scaler()

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        if model.training:
            self.death.comes()
        found = model(**inputs)
        return (found["loss"], found) if return_outputs else found["loss"]


class Accounted(AccountMixin, Plain):
    if len(sys.argv) > 3 and sys.argv[3] == "own loader":

        def get_train_dataloader(self) -> Any:
            return Plain.get_train_dataloader(self)


class Stops(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_epoch_stop = state.global_step == 4


def together(samples: list[tuple[int, torch.Tensor]]) -> dict[str, torch.Tensor]:
    indices, inputs = zip(*samples, strict=True)
    return {"indices": torch.tensor(indices), "inputs": torch.stack(inputs)}


def dropping(samples: list[tuple[int, torch.Tensor]]) -> Batch:
    batch = drops(samples)
    return batch._replace(data=dict(zip(("indices", "inputs"), batch.data, strict=True)))


class Flattened(Counted):
    """Takes samples of three tokens, all of them in one row, each token the number of its sample."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        indices = input_ids.view(-1, 3)[:, 0]
        return super().forward(indices, torch.zeros(len(indices), 4))


folder = own(sys.argv[1])
options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
how = sys.argv[3] if len(sys.argv) > 3 else ""
dist.is_initialized() or dist.init_process_group("gloo")
steps = Steps(options.get("max_steps", -1), options.get("gradient_accumulation_steps", 1))
with Account(task="counted", plan={"train": steps if how == "steps" else EPOCHS}) as account:
    dicts = ("flattened", "of the library")
    model = Flattened() if how in dicts else Counted(how == "overflows")
    arguments = TrainingArguments(
        **{
            "output_dir": folder,
            "use_cpu": True,
            "num_train_epochs": EPOCHS,
            "per_device_train_batch_size": SIZE,
            "save_strategy": "steps",
            "save_steps": 3,
            "max_grad_norm": 0,
            "report_to": [],
            "disable_tqdm": True,
            "dataloader_num_workers": WORKERS,
        }
        | options
    )
    optimizer = model.optimizer()
    # The Trainer writes this file last: a kill can leave a checkpoint without it.
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    newest = max(whole, key=lambda path: int(path.name.partition("-")[2]), default=None)
    last = account.resume_from(newest)
    without = how == "no mixin" or (how == "checkpoint without" and not last)
    trainer = (Plain if without else Accounted)(
        model=model,
        args=arguments,
        eval_dataset=[DATA[index] for index in range(8)],
        train_dataset=[{"input_ids": [index] * 3} for index in range(len(DATA))] if how in dicts else DATA,
        data_collator={
            "untold": together,
            "of the library": DefaultDataCollator(),
            "flattened": DataCollatorWithFlattening(),
            "drops": dropping,
        }.get(how, each_row(together)),
        optimizers=(optimizer, LambdaLR(optimizer, lambda _: 1)),
        callbacks=[Stops()] * (how == "stops"),
        **({} if without else {"account": account}),
    )
    trainer.train(resume_from_checkpoint=None if how == "not loaded" else last)
    report(model, sys.argv[1])
dist.destroy_process_group()
