"""What rank 0 reports of an account's run: a line now and then in a log, and what watchers of the environment are told.

Watchers have the names of the built-in tasks: a number that is logged in the phase `train` as `loss` is `train_loss`.
"""

import functools
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchtally import events, standard_output
from torchtally.accounting.ledger.epoch_in_progress import EpochInProgress
from torchtally.accounting.ledger.tally import Run
from torchtally.accounting.proofs.proving import Proof
from torchtally.accounting.run.phases import Phases
from torchtally.checkpoints.coordination import Rounds
from torchtally.environment import Places
from torchtally.monitoring.callback import Callback, Callbacks
from torchtally.monitoring.requested import Requested
from torchtally.monitoring.tracker import Trained

if TYPE_CHECKING:
    from torchtally.monitoring.prometheus import Exporter

_LOG_SECONDS = 10.0  # between two lines of progress
_READ_SECONDS = 1.0  # between two readings of the logged numbers, which can wait for a GPU


class Reports:
    """The reports of one start of a run, on the process that prints for all."""

    def __init__(self, requested: Requested, exporter: "Exporter | None", phases: Phases, options: Mapping[str, Any]):
        self._requested, self._exporter, self._phases, self._options = requested, exporter, phases, options
        self._model: Trained | None = None
        self._watchers: Callbacks | None = None
        self._open = ExitStack()
        self._begun = self._stepped = False
        self._planned = self._consumed = 0  # samples of all phases that train
        self._counted: dict[str, int] = {}  # steps of each epoch that are reported
        self._trained: dict[str, tuple[float, int]] = {}  # where an epoch began: time and steps
        self._logged: dict[str, Any] = {}  # by name, not read yet
        self._known: dict[str, float] = {}  # numbers that are read
        self._in_log = not sys.stderr.isatty()  # on a terminal, a program has a bar of its own
        self._logged_at = 0  # steps so far
        self._read_at = 0.0
        self._line_at = time.monotonic() + _LOG_SECONDS

    def describe(self, options: Mapping[str, Any], trained: Trained | None) -> None:
        """The program states its options, and what returns its model at the end."""
        self._options, self._model = options, trained

    def begin(self, current: EpochInProgress, run: Run, checkpoints: Rounds | None) -> None:
        """An epoch begins, or continues."""
        self._planned, self._consumed = self._phases.extent
        if not self._begun:
            self._begun = True
            self._notify(run, checkpoints)
        if current.trains:
            self._counted[current.name] = current.counted
            self._trained[current.name] = time.perf_counter(), current.counted

    def stepped(self, current: EpochInProgress) -> None:
        """The optimizer has stepped, with what counts now."""
        if not self._stepped:
            self._stepped = True
            events.emit(events.Step(epoch=current.tally.phase.epoch), current.tally.run.source)
        before, counted = self._counted[current.name], current.counted
        if before == counted:
            return
        self._counted[current.name] = counted
        if self._watchers:
            samples = current.samples(before, counted)
            self._consumed += samples
            self._watchers.step(current.tally.phase.epoch, samples, min(1.0, self._consumed / self._planned))
        now = time.monotonic()
        if self._logged and now >= self._read_at:
            self._read()
        if now >= self._line_at:
            self._line_at = now + _LOG_SECONDS
            self._print(current)

    def log(self, phase: str, numbers: Mapping[str, Any]) -> None:
        """The program reports numbers."""
        for name, number in numbers.items():
            # Without its graph, which it would keep in memory.
            self._logged[f"{_label(phase)}_{name}"] = number.detach() if isinstance(number, Tensor) else number
        if self._watchers:
            self._logged_at = self._phases.steps_so_far
        if not self._phases.open[phase] or time.monotonic() >= self._read_at:
            self._read()

    def loss(self, phase: str) -> float | None:
        """The last one that the program has logged in a phase, and that is read."""
        return self._known.get(f"{_label(phase)}_loss")

    def close(self, current: EpochInProgress, proof: Proof) -> None:
        """An epoch is proved, or is not."""
        if self._logged:
            self._read()
        if not self._watchers:
            return
        if current.trains and current.name in self._trained:
            began, counted = self._trained[current.name]
            speed = current.samples(counted, current.counted) / max(time.perf_counter() - began, 1e-9)
            self._watchers.metrics(self._phases.steps_so_far, samples_per_second=speed)
        self._watchers.proof(proof.lines[-1], proof.holds)

    def complete(self, line: Mapping[str, Any]) -> None:
        """The plan is fulfilled."""
        if self._watchers:
            self._watchers.complete(line)

    def end(self, error: BaseException | None) -> None:
        """The run ends, with this error if it is not None."""
        self._open.__exit__(type(error) if error else None, error, None)

    def _notify(self, run: Run, checkpoints: Rounds | None) -> None:
        """Find the watchers, now that the run and its plan are known."""
        watchers: list[Callback] = [self._exporter.of_run(run, checkpoints)] if self._exporter else []
        for each in self._requested.callbacks(run, self._options, Places.from_env(os.environ).output, self._model):
            watchers.append(self._open.enter_context(each))
        if watchers:
            self._watchers = Callbacks(watchers)
            share = self._consumed / self._planned if self._planned else 0.0
            self._watchers.begin(self._phases.steps_so_far, share)

    def _read(self) -> None:
        """Wait for the logged numbers, and report them."""
        values = {name: float(number) for name, number in self._logged.items()}
        self._logged = {}
        self._known |= values
        if self._watchers:
            self._watchers.metrics(self._logged_at, **values)
        self._read_at = time.monotonic() + _READ_SECONDS

    def _print(self, current: EpochInProgress) -> None:
        if not self._in_log:
            return
        prefix = f"{_label(current.phase)}_"
        known = {name.removeprefix(prefix): value for name, value in self._known.items() if name.startswith(prefix)}
        numbers = "".join(f", {name} {value:.4g}" for name, value in known.items())
        standard_output.write(f"{current.progress}{numbers}")


@functools.cache
def _label(phase: str) -> str:
    """A phase's name as metrics have it."""
    return re.sub(r"\W", "_", phase, flags=re.ASCII)


def problem(numbers: Mapping[str, Any]) -> str | None:
    """Why these are no numbers, or have names that metrics cannot have."""
    for name, number in numbers.items():
        if not (name.isascii() and name.isidentifier()):
            return f"log(): the name {name!r} must have only letters, digits, and _, and no digit first"
        if isinstance(number, Tensor):
            if number.numel() != 1 or number.is_complex():
                return f"log(): {name} must be one number, and its tensor has the shape {tuple(number.shape)}"
            # Rank 0 alone reads it, and would wait for the others' parts.
            if not all(each.is_replicate() for each in getattr(number, "placements", ())):
                return f"log(): {name} is a DTensor of which each rank has a part: pass {name}.full_tensor()"
        elif not hasattr(number, "__float__"):
            return f"log(): {name} must be a number, not a {type(number).__name__}"
    return None
