"""An Accelerate script with an account, whose loader is not prepared."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from torchtally import Account


def main() -> None:
    accelerator = Accelerator(cpu=True)
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 8, generator=random)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = accelerator.prepare(model, sgd)
    seen = 0
    with Account("accelerate", epochs=2) as account:
        account.optimizer(sgd)
        loader = account.loader(data, batch_size=10)
        for _ in account.epochs():
            for points, labels in loader:
                optimizer.zero_grad()
                accelerator.backward(account.weigh(cross_entropy(model(points), labels)))
                optimizer.step()
                seen += len(labels)
    print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {seen} samples", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
