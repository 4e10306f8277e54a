"""Hugging Face's Trainer with a proof. Killed with signal 9, it resumes at the sample where its weights stand.

torchtally run -- python examples/hf_trainer.py       on this machine, or as the command of a PyTorchJob

without/hf_trainer.py is the same script without torchtally.
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics  # a text that every Python has

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from torchtally import Account
from torchtally.integrations.transformers import AccountMixin

EPOCHS, LENGTH = 2, 40


class Pieces(Dataset[dict[str, Tensor]]):
    """Successive pieces of a text, in bytes."""

    def __init__(self, text: bytes):
        self.codes = torch.tensor(list(text))

    def __len__(self) -> int:
        return len(self.codes) // LENGTH

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        piece = self.codes[index * LENGTH : (index + 1) * LENGTH]
        return {"input_ids": piece, "labels": piece}


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint: the Trainer writes trainer_state.json last."""
    whole = [each.parent for each in folder.glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=lambda checkpoint: int(checkpoint.name.partition("-")[2]), default=None)


class AccountedTrainer(AccountMixin, Trainer):
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/hf-trainer"), help="folder of the checkpoints")
    output = parser.parse_args().output
    last = newest(output)
    arguments = TrainingArguments(
        output_dir=str(output),
        use_cpu=True,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        save_steps=10,
        save_total_limit=2,
        logging_steps=10,
        dataloader_num_workers=1,
        report_to=[],
        disable_tqdm=True,
    )
    with Account("hf-trainer", epochs=EPOCHS) as account:
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=256, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
        trainer = AccountedTrainer(
            model=GPT2LMHeadModel(config),
            args=arguments,
            train_dataset=Pieces("\n".join(topics.values()).encode()[: 800 * LENGTH]),
            account=account,
        )
        trainer.train(resume_from_checkpoint=account.resume_from(last))


if __name__ == "__main__":
    main()
