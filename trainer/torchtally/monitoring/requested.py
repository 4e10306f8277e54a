"""The watchers that the options and the environment request."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torchtally.environment import Process, metrics_port, variable
from torchtally.errors import require
from torchtally.monitoring import mlflow_run, tensorboard, tracker, wandb_run
from torchtally.monitoring.callback import Callback, Run
from torchtally.monitoring.tracker import Trained

if TYPE_CHECKING:
    from torchtally.monitoring.prometheus import Exporter


@dataclass(frozen=True, kw_only=True)
class Requested:
    """Who is to be notified of a training by rank 0."""

    experiment: str | None  # of MLflow
    project: str | None  # of Weights & Biases
    folder: str | None  # of TensorBoard, or a URL

    @classmethod
    def of(cls) -> Self:
        """What the environment requests. Raises Refused."""
        experiment, project = variable("TORCHTALLY_MLFLOW"), variable("TORCHTALLY_WANDB")
        folder = variable("TORCHTALLY_TENSORBOARD")
        if experiment is not None:
            _require("mlflow", f"the experiment {experiment!r} (--mlflow, TORCHTALLY_MLFLOW)")
        if project is not None:
            _require("wandb", f"the project {project!r} (TORCHTALLY_WANDB)")
        if folder is not None:
            _require("tensorboard", f"{folder!r} (--tensorboard, TORCHTALLY_TENSORBOARD)")
        return cls(experiment=experiment, project=project, folder=folder)

    def callbacks(
        self, run: Run, options: Mapping[str, Any], output: Path, trained: Trained | None = None
    ) -> Iterator[AbstractContextManager[Callback]]:
        """Yield what notifies each of them in a `with` block, which is the training.

        `output` has what is recorded without a server. `trained`: the model of a built-in task, which writes its proof.
        """
        made = output.absolute() / "proof.json" if trained else None
        if self.experiment is not None:
            yield tracker.recorder(mlflow_run.MLflowRun(self.experiment, run, options, output, trained), made)
        if self.project is not None:
            yield tracker.recorder(wandb_run.WandbRun(self.project, run, options, output), made)
        if self.folder is not None:
            yield tensorboard.recorder(self.folder, run, options)


def _require(package: str, place: str) -> None:
    require(package, f"the record of the run in {place} needs", package)


def exporter(process: Process) -> "Exporter | None":
    """The exporter of metrics if they are requested, on the first rank of a pod. Raises Refused on any rank."""
    port = metrics_port()
    if port is None or process.local_rank:
        return None
    from torchtally.monitoring.prometheus import Exporter  # imports an HTTP server

    return Exporter(port, process.local_world / process.world)
