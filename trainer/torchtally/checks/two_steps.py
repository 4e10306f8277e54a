"""The program of a rank that a check observes: a script, up to the second step of its optimizers."""

import runpy
import sys
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import record
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchtally.checks.script import DONE

_STEPS = 2


@record  # so that an error of the script is told as the cause
def main() -> None:
    """Run the script in sys.argv with its arguments."""
    made = 0

    def stepped(*_: Any) -> None:
        nonlocal made
        made += 1
        if made == _STEPS:
            raise SystemExit(DONE)

    register_optimizer_step_post_hook(stepped)
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as for `python SCRIPT`
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
