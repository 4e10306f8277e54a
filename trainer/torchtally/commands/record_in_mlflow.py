"""The child process of rank 0 that records a run of a built-in task in MLflow (see monitoring/mlflow_client.py)."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from torchtally import tasks
from torchtally.monitoring import mlflow_process


def model_of(task: str, options: Mapping[str, Any]) -> nn.Module:
    return tasks.load(task).model(tasks.OPTIONS[task](**options))


if __name__ == "__main__":
    mlflow_process.main(model_of)
