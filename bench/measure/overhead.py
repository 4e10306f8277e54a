"""The proof's share of a training's time, from timers within one run, because two runs differ by more than the proof.

overhead TASK              measures fashion-mnist or gpt
overhead worker TASK …     is a rank of the measured training
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from bench.sample import emit

P = ParamSpec("P")
R = TypeVar("R")
TASKS = {"fashion-mnist": 2, "gpt": 2}  # with the number of ranks

_spent: dict[str, float] = defaultdict(float)


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        _worker(sys.argv[1:])
        return
    task = sys.argv[1]
    own = {"OMP_NUM_THREADS": "1", "TORCHTALLY_DEVICE": "cpu", "PET_NPROC_PER_NODE": str(TASKS[task])}
    with tempfile.TemporaryDirectory() as output:
        more = [] if task == "gpt" else ["--epochs", "1"]
        rank = [sys.executable, "-m", "bench.measure.overhead", "worker", task, *more]
        subprocess.run(["torchtally", "run", "--", *rank, "--output", output], env=os.environ | own, check=True)


def _worker(arguments: list[str]) -> None:
    from examples import gpt
    from torchtally.accounting.ledger import tally
    from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
    from torchtally.accounting.run import counting
    from torchtally.commands import train
    from torchtally.proof.shards import Shard
    from torchtally.training import loop

    names: Any = counting
    names.prove = _timed("proof", names.prove)
    loop.Loop.fit = _timed("training", loop.Loop.fit)  # type: ignore[method-assign]
    gpt.train = _timed("training", gpt.train)
    EpochInProgress.hand_out = _timed("proof", EpochInProgress.hand_out)  # type: ignore[method-assign]
    tally.Tally.record = _timed("proof", tally.Tally.record)  # type: ignore[method-assign]
    Shard.indices = _timed("order", Shard.indices)  # type: ignore[method-assign]
    if arguments[1] == "gpt":
        sys.argv = arguments[1:]
        gpt.main()
        code = 0
    else:
        sys.argv = arguments
        code = train.main()
    if code == 0 and os.environ["RANK"] == "0":
        world = int(os.environ["WORLD_SIZE"])
        for what in ("proof", "order"):
            emit(
                "overhead",
                100 * _spent[what] / _spent["training"],
                "%",
                "lower",
                what=what,
                task=arguments[1],
                world=world,
            )
    sys.exit(code)


def _timed(what: str, function: Callable[P, R]) -> Callable[P, R]:
    def timed(*arguments: P.args, **options: P.kwargs) -> R:
        began = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            _spent[what] += time.perf_counter() - began

    return timed


if __name__ == "__main__":
    main()
