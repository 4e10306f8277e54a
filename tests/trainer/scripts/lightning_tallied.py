"""The same Lightning script with a tally around its loader."""

import torch.distributed as dist
from lightning_script import Classifier, points, train
from torch.utils.data import DataLoader

from torchtally import TalliedSampler
from torchtally.accounting.epochs import Epochs


class Tallied(Classifier):
    def train_dataloader(self) -> Epochs:
        data = points()
        self.sampler = TalliedSampler(data, epochs=2)
        return self.sampler.tally(DataLoader(data, batch_size=10, sampler=self.sampler))


if __name__ == "__main__":
    model = Tallied()
    train(model, use_distributed_sampler=False)
    model.sampler.done()
    dist.destroy_process_group()  # see lightning_script.py
