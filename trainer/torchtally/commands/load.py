"""Loads a task on a rank, so that all ranks learn why one cannot."""

import os

from torchtally import tasks
from torchtally.distributed import process_group
from torchtally.environment import Process
from torchtally.errors import Refused
from torchtally.options import Training
from torchtally.training.task import Task


def load_task(name: str, options: Training) -> Task:
    """Load the task. Raises Refused on every rank if it cannot be loaded on any, and Lost."""
    try:
        return tasks.load(name, options)
    except Refused as refused:
        process_group.join(Process.from_env(os.environ), {}, str(refused))
        raise
