"""Hugging Face's Trainer on a tiny model made on the spot, with an account."""

import tempfile

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from torchtally import Account
from torchtally.integrations.transformers import AccountMixin


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """Sequences of eight numbers that go up by one."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = (torch.arange(8) + index) % 32
        return {"input_ids": numbers, "labels": numbers}


class Counting(AccountMixin, Trainer):
    seen = 0

    def training_step(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *more: object) -> torch.Tensor:
        self.seen += len(inputs["labels"])
        return super().training_step(model, inputs, *more)


def train(account: Account) -> None:
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=2,
            per_device_train_batch_size=8,
            save_strategy="no",
            logging_steps=4,
            report_to=[],
            disable_tqdm=True,
        )
        model = GPT2LMHeadModel(config)
        trainer = Counting(model=model, args=arguments, train_dataset=Numbers(), account=account)
        trainer.train()
    print(f"rank {arguments.process_index} of {arguments.world_size}: {trainer.seen} samples", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with Account(task="trainer", plan={"train": 2}) as account:
        train(account)
    dist.destroy_process_group()  # PyTorch asks for it, or may abort at the end
