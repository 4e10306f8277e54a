"""The beginning and the end of an account, as a `with` statement."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist

from torchtally import events
from torchtally.accounting.guards.guards import Guards, switched_off
from torchtally.accounting.loader import Loader
from torchtally.accounting.order.locality import Locality, check_order
from torchtally.accounting.order.plan import Planned
from torchtally.accounting.proofs import kept_lines, proof_file
from torchtally.accounting.reporting.pace import Pace
from torchtally.accounting.run.attempt import Attempt
from torchtally.accounting.run.counting import Counting
from torchtally.accounting.run.phases import Phases
from torchtally.accounting.run.progress import Progress
from torchtally.accounting.run.reports import Reports
from torchtally.environment import Process, preflight_mode
from torchtally.errors import Ending, Refused, Unproven
from torchtally.log import log
from torchtally.monitoring.requested import Requested, exporter
from torchtally.pod import failure
from torchtally_observer import process

if TYPE_CHECKING:
    from torchtally.monitoring.prometheus import Exporter


class Lifetime:
    """Begins one start of a run, and ends it: a base of `Account`, which has the arguments."""

    def __init__(
        self,
        task: str,
        epochs: Planned | None = None,
        *,
        plan: Mapping[str, Planned] | None = None,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        anew: bool = False,
        order: Locality | None = None,
    ):
        process.current().leave()
        self._task, self._epochs, self._plan = task, epochs, plan
        self._seed, self._group, self._anew = seed, group, anew
        self._order = order
        self._driven: list[Loader] = []
        self.discarded = 0  # samples known to be lost with restarts: consumed after the checkpoint of each
        self._reports: Reports | None = None  # on the process that prints for all
        self._exporter: Exporter | None = None  # on the first rank of a pod, if metrics are requested
        self.last_line: dict[str, Any] | None = None  # of the run, once it has ended

    @property
    def task(self) -> str:
        """Name of the run."""
        return self._task

    @property
    def source(self) -> events.Source:
        """This process, as its events name it."""
        return self._attempt.run.source

    @property
    def reached(self) -> tuple[int, int, int]:
        """Epoch in progress of the first phase that trains, position in its order, and its samples in the weights."""
        return self._phases.reached

    @property
    def grown_from(self) -> Mapping[str, Any] | None:
        """The plan of the loaded state, if that planned fewer epochs."""
        return self._progress.grown_from

    def __getattr__(self, name: str) -> Any:
        if name in ("_attempt", "_counting", "_guards", "_phases", "_progress"):
            raise SystemExit(
                failure.end(Refused("an Account must be used in a `with` statement: with Account(…) as …"))
            )
        raise AttributeError(f"an Account has no attribute {name!r}")

    def __enter__(self) -> Self:
        try:
            plan = self._plan if self._epochs is None else {"train": self._epochs}
            if self._epochs is not None and self._plan is not None:
                raise Refused(f"an Account takes epochs={self._epochs} or plan={self._plan}, and not both")
            if not isinstance(plan, Mapping) or not plan:
                raise Refused(
                    'an Account needs epochs=10, or the epochs of each phase, plan={"train": 10, "test": 10}, '
                    f"and not plan={plan!r}"
                )
            check_order(self._order)
            self._progress = Progress(plan)
            requested, pace, refused, off = None, None, None, list[str]()
            try:
                process = Process.from_env(os.environ)
                requested, pace, self._exporter = Requested.of(), Pace.of(process), exporter(process)
                preflight_mode(os.environ)
                off = switched_off(os.environ)
            except Refused as error:
                refused = str(error)  # of which all ranks learn
            self._attempt = Attempt(
                task=self._task,
                plan=self._progress.given,
                seed=self._seed,
                group=self._group,
                anew=self._anew,
                problem=refused,
                off=off,
            )
            attempt = self._attempt
            guards = Guards(
                off, attempt.members, lambda: self._counting.gradients.optimizers, lambda: attempt.begins_anew
            )
            self._phases = Phases(self._progress, attempt, self._order, guards)
            if self._attempt.prints and requested:
                options = {"seed": self._seed, "plan": self._progress.given}
                self._reports = Reports(requested, self._exporter, self._phases, options)
            self._guards = guards
            self._counting = Counting(
                attempt, self._progress, self._phases, guards, self._reports, pace, self._exporter
            )
        except Ending as ending:
            raise SystemExit(failure.end(ending)) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        except Ending as sentence:
            error = sentence
        self._counting.close()
        self._attempt.close()
        if checkpoints := self._counting.checkpoints:
            try:
                checkpoints.close(wait=error is None)
            except Ending as sentence:
                error = sentence
        if self._reports:
            self._reports.end(error)
        if self._exporter:
            self._exporter.close()
        left = (
            f"run {self._attempt.run.run} of {self._task} is not proved: {type(error).__name__} has ended it before "
            "its plan; account.stop() ends a run on purpose"
        )
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = Unproven(left)
        if isinstance(error, Ending):
            raise SystemExit(failure.end(error)) from None
        if isinstance(error, Exception):
            failure.record(error)
            log.warning(left)

    def _write_proof(self, path: Path, files: list[Path]) -> None:
        """Write the proof of a run that has ended: `Account.write_proof`. Raises Refused."""
        if self.last_line is None:
            raise Refused("write_proof() must come after the end of the account's `with` statement")
        if wrong := self._guards.ends():
            raise Refused(f"write_proof(): {wrong}")
        if self._attempt.prints:
            proof_file.write_of(path, files, kept_lines.lines(self.last_line["run"]), self.last_line)

    def _finish(self) -> None:
        with self._counting.final():
            for each in self._driven:
                each.end()
            self.last_line = self._counting.finish(self.discarded)
