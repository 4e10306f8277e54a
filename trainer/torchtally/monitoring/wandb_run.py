"""A run in Weights & Biases."""

import os
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from torchtally.monitoring.callback import Run
from torchtally.monitoring.tracker import Proof, Status, Value

_SECONDS = 10.0  # of an answer, for which the end of the program waits: a stopped pod has only its grace period


class WandbRun:
    """A `Tracker`.

    Args:
        project: Its name in Weights & Biases.
        run: The run of the account.
        options: Those of the program.
        output: Folder of the client's files, which `wandb sync` sends if it is offline.
    """

    name = "Weights & Biases"

    def __init__(self, project: str, run: Run, options: Mapping[str, Any], output: Path) -> None:
        import wandb  # not in the thread: a process that is forked meanwhile would find the import begun

        self._settings = wandb.Settings(
            console="off",  # the lines of the proof leave this process unchanged
            disable_git=True,
            finish_timeout=_SECONDS,
            init_timeout=_SECONDS,
            reinit="create_new",  # beside a run of the program
            silent=True,
        )
        self._project, self._of, self._output = project, run, output
        self._config = {**options, "data": run.data, "world": run.world, "attempt": run.attempt}
        self._run: Any = None

    def connect(self) -> None:
        import wandb

        if self._run is None:
            self._output.mkdir(parents=True, exist_ok=True)
            self._run = wandb.init(
                project=self._project,
                id=self._of.run,
                name=f"{self._of.task}-{self._of.run}",
                resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
                dir=self._output,
                settings=self._settings,
            )
            self._run.config.update(self._config, allow_val_change=True)
            self._run.define_metric("*", step_metric="step")  # its own never falls, as after a resume

    def log(self, values: list[Value]) -> None:
        for step, group in groupby(values, key=lambda value: value.step):
            self._run.log({"step": step, **{value.name: value.value for value in group}})

    def finish(self, status: Status, proof: Proof | None) -> None:
        if proof:
            file = Path(self._run.dir, proof.file)
            file.write_text(proof.text)
            self._run.save(str(file), base_path=self._run.dir, policy="now")
            self._run.summary["torchtally.proof"] = proof.verdict
        elif status == "KILLED":
            self._run.mark_preempting()
        self._run.finish(exit_code=int(status != "FINISHED"))
