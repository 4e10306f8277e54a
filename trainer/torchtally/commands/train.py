"""One rank of a built-in task: from its options to an exit code. torchrun's agent starts it (see pod/launch.py)."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from torchtally import compat, events, tasks
from torchtally.accounting.tally import Run
from torchtally.commands.setup import set_up
from torchtally.distributed import process_group, shared_memory
from torchtally.environment import Places, StatusServer, metrics_port
from torchtally.errors import Volume
from torchtally.monitoring import mlflow_client, trainjob_status
from torchtally.monitoring.callback import Callback, Callbacks
from torchtally.options import Training
from torchtally.pod.failure import exit_rank
from torchtally.training import artifacts, loop
from torchtally.training.checkpointer import FOLDER, Checkpointer, resume
from torchtally.training.task import Task
from torchtally.training.train_state import TrainState

compat.import_optimizers()  # here, once for all ranks of a pod

_PATIENCE = 240.0  # seconds in which the model has to be written: less than the other ranks wait (handshake.COLLECTIVE)


def main() -> int:
    """Train as sys.argv says and return the exit code."""
    arguments = tasks.parser("run").parse_args()
    return process_group.exit_code(lambda: _run(arguments.task, tasks.chosen(arguments)))


def _run(name: str, chosen: Training) -> None:
    output = chosen.output or Places.from_env(os.environ).output
    task = tasks.load(name)
    if task.fit:
        train_state = task.fit(name, chosen, output)
        if dist.get_rank() == 0:
            _write(train_state, task, output, artifacts.training(name, chosen, task.fingerprint))
    else:
        _fit(name, chosen, output)
    dist.barrier()  # nobody is done before the model is safe


def _fit(name: str, chosen: Training, output: Path) -> None:
    """Train by the loop, from the newest checkpoint on, and write what came of it."""
    asked = {name: value for name, value in vars(chosen).items() if name not in ("data", "output", "seed")}
    met = set_up(name, chosen.data, {"seed": chosen.seed, "options": asked}, lambda: _prepare(chosen, output))
    process, task, where = met.process, met.task, met.device

    folder = output / FOLDER
    kept = artifacts.training(name, chosen, task.fingerprint)
    state = resume(folder, kept, where)
    checkpointer = Checkpointer(folder, kept, where, chosen.keep, chosen.save_seconds)
    checkpointer.listen()
    run = Run(
        run=state["run"] if state else met.run,
        attempt=state["attempt"] + 1 if state else process.attempt,
        pod=process.pod,
        task=name,
        plan={"train": chosen.epochs, "test": chosen.epochs},
        rank=process.rank,
        world=process.world,
        seed=chosen.seed,
        data=task.fingerprint,
    )
    with ExitStack() as stack:
        asked_for = _watchers(chosen, run, output, task.inputs(met.test.inputs[:2])) if process.rank == 0 else ()
        callbacks = [stack.enter_context(each) for each in asked_for]
        callback = Callbacks(callbacks) if callbacks else None
        training = loop.Loop(
            task=task,
            options=chosen,
            run=run,
            train=met.train.to(where),
            test=met.test.to(where),
            device=where,
            checkpointer=checkpointer,
            callback=callback,
            memory=shared_memory.shared(process.local_world) if where.type == "cpu" else None,
        )
        train_state = training.fit(state)
        if process.rank == 0:
            _write(train_state, task, output, kept)


def _watchers(chosen: Training, run: Run, output: Path, example: Tensor) -> Iterator[AbstractContextManager[Callback]]:
    """Those that were asked for. Raises Refused."""
    if chosen.mlflow is not None:
        yield mlflow_client.tracked(chosen.mlflow, run, chosen.of_training(), output, example.tolist())
    if port := metrics_port():
        from torchtally.monitoring import prometheus  # an HTTP server, for those who want it

        yield prometheus.served(port, run)
    if server := StatusServer.from_env():
        yield trainjob_status.reported(server)


def _prepare(chosen: Training, output: Path) -> None:
    if chosen.mlflow is not None:
        mlflow_client.check()
    artifacts.prepare(output)


def _write(train_state: TrainState, task: Task, output: Path, facts: dict[str, Any]) -> None:
    """Write what came of it; with patience, for all has been done but that. Raises Volume."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return artifacts.write(train_state, task, output, facts)
        except OSError as error:
            sentence = f"the model cannot be written to {output} (--output, TORCHTALLY_OUTPUT): {error}"
            events.emit(events.WriteFailed(output=str(output), cause=str(error)), train_state.run.source)
            if time.monotonic() > until:
                raise Volume(sentence) from None
        print(f"torchtally: {sentence}; trying again", file=sys.stderr, flush=True)
        time.sleep(10)


if __name__ == "__main__":
    exit_rank(main())
