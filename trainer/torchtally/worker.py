"""One rank of a built-in task: from its options to an exit code. torchrun's agent starts it (see launch.py)."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  # an optimizer imports it when it is made: here, once for all ranks of a pod
import torch.distributed as dist
from torch import Tensor

from torchtally import all_reduce, complete, loop, options, progress, tracking
from torchtally.cli import task_parser
from torchtally.course import Course
from torchtally.errors import Volume
from torchtally.failure import leave
from torchtally.job import Places, StatusServer, metrics_port
from torchtally.keeper import FOLDER, Keeper, resume
from torchtally.meeting import ended, meet, prepare
from torchtally.tally import Run
from torchtally.watcher import Watcher, Watchers

_PATIENCE = 240.0  # seconds in which the model has to be written: less than the other ranks wait (agreement.COLLECTIVE)


def main() -> int:
    """Train as sys.argv says and return the exit code."""
    arguments = task_parser("run").parse_args()
    return ended(lambda: _run(arguments.task, options.chosen(arguments)))


def _run(name: str, chosen: options.Training) -> None:
    output = chosen.output or Places.from_env(os.environ).output
    if isinstance(chosen, options.ParameterServer):
        from torchtally import parameter_server  # RPC: not for the other tasks

        course = parameter_server.fit(name, chosen, output)
        if dist.get_rank() == 0:
            task = loop.task(name)
            _write(course, task, output, complete.training(name, chosen, task.fingerprint))
    else:
        _fit(name, chosen, output)
    dist.barrier()  # nobody is done before the model is safe


def _fit(name: str, chosen: options.Training, output: Path) -> None:
    """Train by the loop, from the newest checkpoint on, and write what came of it."""
    asked = {name: value for name, value in vars(chosen).items() if name not in ("data", "output", "seed")}
    met = meet(name, chosen.data, {"seed": chosen.seed, "options": asked}, lambda: _prepare(chosen, output))
    process, task, where = met.process, met.task, met.device

    folder = output / FOLDER
    kept = complete.training(name, chosen, task.fingerprint)
    state = resume(folder, kept, where)
    keeper = Keeper(folder, kept, where, chosen.keep, chosen.save_seconds)
    keeper.listen()
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
        watchers = [stack.enter_context(each) for each in asked_for]
        watcher = Watchers(watchers) if watchers else None
        course = loop.fit(
            task,
            chosen,
            run,
            met.train.to(where),
            met.test.to(where),
            where,
            keeper,
            state,
            watcher=watcher,
            memory=all_reduce.shared(process.local_world) if where.type == "cpu" else None,
        )
        if process.rank == 0:
            _write(course, task, output, kept)


def _watchers(
    chosen: options.Training, run: Run, output: Path, example: Tensor
) -> Iterator[AbstractContextManager[Watcher]]:
    """Those that were asked for. Raises Refused."""
    if chosen.mlflow is not None:
        yield tracking.tracked(chosen.mlflow, run, options.of_training(chosen), output, example.tolist())
    if port := metrics_port():
        from torchtally import metrics  # an HTTP server, for those who want it

        yield metrics.served(port, run)
    if server := StatusServer.from_env():
        yield progress.reported(server)


def _prepare(chosen: options.Training, output: Path) -> None:
    if chosen.mlflow is not None:
        tracking.check()
    prepare(output)


def _write(course: Course, task: loop.Task, output: Path, facts: dict[str, Any]) -> None:
    """Write what came of it; with patience, for all has been done but that. Raises Volume."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return complete.write(course, task, output, facts)
        except OSError as error:
            sentence = f"the model cannot be written to {output} (--output, TORCHTALLY_OUTPUT): {error}"
            if time.monotonic() > until:
                raise Volume(sentence) from None
        print(f"torchtally: {sentence}; trying again", file=sys.stderr, flush=True)
        time.sleep(10)


if __name__ == "__main__":
    leave(main())
