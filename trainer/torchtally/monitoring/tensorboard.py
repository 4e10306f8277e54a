"""The recording of a run in TensorBoard's event files by rank 0, which a failing store neither stops nor slows.

All attempts of a run are one run of TensorBoard. A start that continues at an earlier step has TensorBoard drop the
points after it, because their steps are made again.
"""

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchtally.log import log
from torchtally.monitoring.callback import Callback, Run

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_FLUSH_SECONDS = 10
_MAX_PENDING = 100_000  # values that wait for the store; beyond it the training would


@contextmanager
def recorder(folder: str, run: Run, options: Mapping[str, Any]) -> Iterator["Recorder"]:
    """Record the training in the `with` block, in a subfolder of `folder`, which can be a URL."""
    recorder = Recorder(f"{folder.rstrip('/')}/{run.task}-{run.run}", run, options)
    try:
        yield recorder
    finally:
        recorder.end()


class Recorder(Callback):
    """Records a run in a folder. A thread of TensorBoard's writes the files.

    Attributes:
        patience: Seconds to wait for the last values, because the grace period of a pod is short.
    """

    patience = 10.0

    def __init__(self, folder: str, run: Run, options: Mapping[str, Any]) -> None:
        self._folder, self._run, self._options = folder, run, options
        self._writer: SummaryWriter | None = None
        self._failed = False
        self._step = 0  # the last one with values

    def begin(self, step: int, done: float) -> None:
        from torch.utils.tensorboard import SummaryWriter

        def open_file() -> None:
            self._writer = SummaryWriter(
                self._folder,
                purge_step=step + 1 if self._run.attempt else None,
                max_queue=_MAX_PENDING,
                flush_secs=_FLUSH_SECONDS,
            )

        self._step = step
        self._try(open_file)
        facts = {"data": self._run.data, "world": self._run.world, "attempt": self._run.attempt}
        self._write(lambda writer: writer.add_text("run", _code({**facts, **self._options}), step + 1))

    def metrics(self, step: int, **values: float) -> None:
        self._step = step

        def add(writer: "SummaryWriter") -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        self._write(add)

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        # Not as text: of that, TensorBoard would keep the points of an earlier start. NaN: too many to count.
        counts = {how: math.nan if line[how] is None else line[how] for how in ("lost", "duplicated")}
        self.metrics(self._step, **{f"{line['phase']}_samples_{how}": count for how, count in counts.items()})

    def end(self) -> None:
        """Write what is pending. Waits no longer than `patience`."""
        if not (writer := self._writer) or self._failed:
            return
        closing = threading.Thread(target=self._try, args=[writer.close], daemon=True)
        closing.start()
        closing.join(self.patience)
        if closing.is_alive():
            self._warn_once("no answer")  # from this thread: one that prints while Python exits can abort it

    def _write(self, add: Callable[["SummaryWriter"], None]) -> None:
        if writer := self._writer:
            self._try(lambda: add(writer))

    def _try(self, what: Callable[[], None]) -> None:
        """Do it unless something has failed before. No error of the store's may end the training."""
        if self._failed:
            return
        try:
            what()
        except Exception as error:
            self._warn_once(str(error) or type(error).__name__)

    def _warn_once(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            log.warning(
                f"{self._folder} does not take TensorBoard's record of this run, and the training continues without: "
                f"{reason}"
            )


def _code(facts: Mapping[str, Any]) -> str:
    """Facts as a block of Markdown."""
    return "".join(f"    {name}: {json.dumps(value, default=str)}\n" for name, value in facts.items())
