"""The same Trainer with a tally around its loader."""

import torch.distributed as dist
from torch.utils.data import DataLoader
from trainer_script import Counting, train

from torchtally import TalliedSampler, each_row
from torchtally.accounting.epochs import Epochs


class Tallied(Counting):
    def get_train_dataloader(self) -> Epochs:
        self.sampler = TalliedSampler(self.train_dataset, epochs=2)
        return self.sampler.tally(
            DataLoader(
                self.train_dataset,
                batch_size=self.args.per_device_train_batch_size,
                sampler=self.sampler,
                collate_fn=each_row(self.data_collator),
            )
        )


if __name__ == "__main__":
    train(Tallied).sampler.done()
    dist.destroy_process_group()  # see trainer_script.py
