"""The beginning and the end of an account, as a `with` statement."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist

from torchtally import events
from torchtally.accounting.guards.guards import Guards, switched_off
from torchtally.accounting.ledger.gradients import Gradients
from torchtally.accounting.loader import Loader
from torchtally.accounting.order.locality import Locality, check_order
from torchtally.accounting.order.plan import Planned
from torchtally.accounting.reporting.pace import Pace
from torchtally.accounting.run.attempt import Attempt
from torchtally.accounting.run.counting import Counting
from torchtally.accounting.run.phases import Phases
from torchtally.accounting.run.progress import Progress
from torchtally.accounting.run.reports import Reports
from torchtally.distributed import process_group
from torchtally.environment import Process, call_seconds, preflight_mode
from torchtally.errors import Ending, Refused, Unproven, as_int
from torchtally.log import log
from torchtally.monitoring.requested import Requested, exporter
from torchtally.monitoring.tracker import Trained
from torchtally.pod import failure
from torchtally_observer import process

if TYPE_CHECKING:
    from torchtally.monitoring.prometheus import Exporter


class _NotBegun(Refused, AttributeError):
    """Both, so that `hasattr` answers for an account outside its `with` statement."""


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
        self._seed, self._group, self._anew = as_int(seed), group, anew
        self._order = order
        self._alone = False  # whether the process group is the account's own
        self._driven: list[Loader] = []
        self._copies = ExitStack()  # of checkpoints
        self._before_end: list[Callable[[], None]] = []
        self._after_end: list[Callable[[Mapping[str, Any]], None]] = []
        self.discarded = 0  # samples known to be lost with restarts: consumed after the checkpoint of each
        self.made: tuple[str, str] | None = None  # hash of the model's file, for the last line, and the model's folder
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

    def before_end(self, look: Callable[[], None]) -> None:
        """Call this once the program has come to the end of the `with` statement, before the run is proved."""
        self._before_end.append(look)

    def after_end(self, act: Callable[[Mapping[str, Any]], None]) -> None:
        """Call this with the last line of the run once that is proved, before watchers learn that it has ended."""
        self._after_end.append(act)

    def describe(self, options: Mapping[str, Any], trained: Trained | None = None) -> None:
        """State the options of the program, and what returns its model at the end, for watchers: before any epoch."""
        if self._reports:
            self._reports.describe(options, trained)

    def __getattr__(self, name: str) -> Any:
        if "_counting" not in vars(self):
            raise _NotBegun("an Account must be used in a `with` statement: with Account(…) as …")
        raise AttributeError(f"an Account has no attribute {name!r}")

    def __enter__(self) -> Self:
        try:
            self._begin()
        except Ending as ending:
            failure.record(ending)
            self._leave_group()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raised = error
        try:
            if error is None or (isinstance(error, SystemExit) and not error.code and self._progress.is_complete):
                self._finish()
                error = None
        except Exception as own:
            error = own
        if error is not None:
            error = self._attempt.cause(error)
        self._counting.close()
        self._copies.close()
        self._attempt.close()
        if checkpoints := self._counting.checkpoints:
            try:
                checkpoints.close(wait=error is None)
            except Exception as own:
                error = self._attempt.cause(own)
        if self._reports:
            self._reports.end(error)
        if self._exporter:
            self._exporter.close()
        self._attempt.leave()
        self._leave_group()
        left = (
            f"run {self._attempt.run.run} of {self._task} is not proved: {type(error).__name__} has ended it before "
            "its plan; account.stop() ends a run on purpose"
        )
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = Unproven(left)
        if isinstance(error, Exception):
            failure.record(error)
            if not isinstance(error, Ending):
                log.warning(left)
        for each in self._driven:
            each.close()
        if error is not None and error is not raised:
            raise error

    def _begin(self) -> None:
        """Begin this start of the run. Raises Refused on every rank if one has a problem."""
        failure.keep_exit_codes()
        self._alone = process_group.of_one(os.environ)
        failure.keep_exit_codes()
        process = Process.of_group(dist.get_rank(), dist.get_world_size(), os.environ)
        self._progress, requested, pace, refused, off = Progress({}), None, None, None, list[str]()
        try:
            check_order(self._order)
            self._progress = Progress(self._planned())
            requested, pace, self._exporter = Requested.of(), Pace.of(process), exporter(process)
            preflight_mode(os.environ)
            call_seconds(os.environ)
            off = switched_off(os.environ)
        except Refused as error:
            refused = str(error)  # of which all ranks learn
        self._attempt = Attempt(
            task=self._task,
            plan=self._progress.given,
            seed=self._seed,
            group=self._group,
            anew=self._anew,
            process=process,
            problem=refused,
            off=off,
        )
        attempt, gradients = self._attempt, Gradients()
        self._guards = Guards(off, attempt.members, gradients, lambda: attempt.begins_anew)
        self._phases = Phases(self._progress, attempt, self._order, self._guards, gradients.open)
        if attempt.prints and requested:
            options = {"seed": self._seed, "plan": self._progress.given}
            self._reports = Reports(requested, self._exporter, self._phases, options)
        self._counting = Counting(
            attempt, self._progress, self._phases, gradients, self._guards, self._reports, pace, self._exporter
        )

    def _leave_group(self) -> None:
        if self._alone and dist.is_initialized():
            dist.destroy_process_group()

    def _planned(self) -> Mapping[str, Planned]:
        """The plan of each phase. Raises Refused."""
        plan = self._plan if self._epochs is None else {"train": self._epochs}
        if self._epochs is not None and self._plan is not None:
            raise Refused(f"an Account takes epochs={self._epochs} or plan={self._plan}, and not both")
        if not isinstance(plan, Mapping) or not plan:
            raise Refused(
                'an Account needs epochs=10, or the epochs of each phase, plan={"train": 10, "test": 10}, '
                f"and not plan={plan!r}"
            )
        return plan

    def _finish(self) -> None:
        for look in self._before_end:
            look()
        with self._counting.final:
            for each in self._driven:
                each.end()
            self.last_line = last = self._counting.finish(self.discarded, self.made and self.made[0])
            if last:
                for act in self._after_end:
                    act(last)
            self._attempt.complete(self.made)
            if last and not self.made:  # a built-in task has written that of its model
                self._attempt.archive(last)
