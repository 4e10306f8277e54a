"""An overview for people."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchtally.jobs.job_outcome import Standing
from torchtally.jobs.job_status import Overview, PodRow
from torchtally.jobs.starting import Start
from torchtally.proof import table
from torchtally.record import sentences
from torchtally.record.model import Restart, Straggler
from torchtally.verifier.phrasing import counted

_COLOURS = {
    Standing.PROVED: "green",
    Standing.OBSERVED: "green",
    Standing.FAULTY: "bold red",
    Standing.DISPROVED: "bold red",
    Standing.FAILED: "red",
    Standing.INCOMPLETE: "yellow",
    Standing.PENDING: "yellow",
    Standing.RUNNING: "cyan",
}
_WHOLE = 10_000  # columns of a pipe or a file, for whole lines
_NARROW = 72  # columns; below, a table has its most important columns
_PODS = 32  # rows; beyond, those that differ
_RESTARTS = 5
_SILENT = 3
_TOGETHER = 30.0  # seconds between ends of pods that are of one fault


def console(width: int | None = None, file: Any = None) -> Console:
    """To standard output, or to a file as a terminal of this width without colours would have it."""
    found = Console(width=width, file=file, highlight=False, emoji=False, markup=False, soft_wrap=False)
    if width is None and not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = _WHOLE
    return found


def jobs(overviews: Iterable[Overview], encoding: str, width: int) -> RenderableType:
    """The table of `list`."""
    narrow = width < _NARROW
    rows = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("job", "state", "progress"):
        rows.add_column(name, overflow="fold")
    if not narrow:
        rows.add_column("left", justify="right")
    rows.add_column("restarts" if not narrow else "re.", justify="right")
    rows.add_column("proof", overflow="fold")
    for each in overviews:
        cells = [Text(each.job), Text(each.state), Text(_progress(each, narrow))]
        if not narrow:
            cells.append(Text(sentences.duration(each.seconds_left)))
        logs = f" (no lines of {len(each.silent)} pod{'s' * (len(each.silent) > 1)})" if each.silent else ""
        proof = Text(_mark(each.standing, encoding) + str(each.standing) + logs, _COLOURS[each.standing])
        rows.add_row(*cells, Text(str(sum(pod.restarts for pod in each.pods))), proof)
    return rows


def whole(overview: Overview, encoding: str, width: int) -> RenderableType:
    """The view of `status` and `watch`."""
    return Group(*_parts(overview, encoding, width))


def line(overview: Overview) -> str:
    """One line, for a log."""
    parts = [f"{overview.job} is {overview.state}"]
    if overview.attempt:
        parts.append(f"attempt {overview.attempt + 1}")
    if overview.standing is Standing.FAILED and overview.cause:
        parts.append(overview.cause)
    if overview.epoch is not None and overview.epochs:
        step = f", step {overview.step} of {overview.steps}" if overview.step is not None else ""
        parts.append(f"{_reached(overview)}epoch {overview.epoch} of {overview.epochs}{step}")
    elif not halted(overview) and overview.standing is not Standing.FAILED:
        parts += _starting(overview)
    parts += _numbers(overview)
    if overview.straggler:
        parts.append(_slowest(overview.straggler))
    if overview.restarts:
        parts.append(f"{counted(len(overview.restarts), 'restart')} of pods")
    return "; ".join([*parts, *halted(overview)[:1]])


def _starting(overview: Overview) -> list[str]:
    """What the pods do before the first epoch."""
    if not overview.pods:
        return ["no pod has reported"] if overview.kind is None else []
    usual, count = Counter(pod.does for pod in overview.pods).most_common(1)[0]
    one = next(pod.name for pod in overview.pods if pod.does == usual)
    others = f", as do {count - 1} other pods" if count > 2 else ", as does another pod" * (count > 1)
    return [f"{one} {usual}{others}"]


def halted(overview: Overview) -> list[str]:
    """The pods that wait for the cluster, or hang, each with what it waits for or where it stands."""
    return [f"{pod.name} {pod.does}" for pod in overview.pods if pod.does.startswith(("waits:", "takes no batch:"))]


def _parts(overview: Overview, encoding: str, width: int) -> Iterator[RenderableType]:
    where = f"{overview.kind} in {overview.namespace}, " if overview.kind else ""
    title = Text(overview.job, "bold")
    title.append(f"  {where}{overview.state}", "default")
    yield title
    if overview.run:
        ranks = f", {counted(overview.world, 'rank')}" if overview.world else ""
        again = f", attempt {overview.attempt + 1}" if overview.attempt else ""
        yield Text(f"run {overview.run}, {overview.task}{ranks}{again}", "dim")
    failed = overview.standing is Standing.FAILED
    if failed and overview.cause:
        yield Text(overview.cause, "red")
    if overview.share is not None:
        yield Text(_reached(overview) + _progress(overview, narrow=False))
        if not failed:
            yield _bar(overview.share, min(width, 80))
    if numbers := _numbers(overview):
        yield Text(", ".join(numbers))
    if overview.start and overview.start.made:
        yield Text(_start(overview.start), "dim")
    if overview.save_failed:
        yield Text(f"the last checkpoint could not be written: {overview.save_failed}", "red")
    if overview.pods:
        yield Text()
        yield from _pods(overview, width)
    if overview.restarts:
        yield Text()
        yield from _restarts(overview.restarts)
    if overview.cause and not failed:
        yield Text()
        yield Text(overview.cause, "red")
    for note in (*overview.notes, *overview.silent[:_SILENT]):
        yield Text(f"warning: {note}", "yellow")
    if more := len(overview.silent[_SILENT:]):
        yield Text(f"warning: {counted(more, 'more pod')} without lines", "yellow")
    yield Text()
    yield Text(f"{_mark(overview.standing, encoding)}{overview.proof}", _COLOURS[overview.standing])


def _mark(standing: Standing, encoding: str) -> str:
    good, bad = table.marks(encoding)
    if standing in (Standing.OBSERVED, Standing.PENDING, Standing.RUNNING):  # an observation is no proof
        return ""
    return f"{good if standing is Standing.PROVED else bad} "


def _progress(overview: Overview, narrow: bool) -> str:
    if overview.epoch is None or not overview.epochs:
        return ""
    if narrow:
        return f"{overview.share:.0%}" if overview.share is not None else f"{overview.epoch}/{overview.epochs}"
    text = f"epoch {overview.epoch} of {overview.epochs}"
    if overview.share != 1.0 and overview.step is not None:
        text += f", step {overview.step} of {overview.steps}"
    return text + (f" ({overview.share:.0%})" if overview.share is not None else "")


def _reached(overview: Overview) -> str:
    """Before the progress: that of a failed job is its last."""
    return "reached " if overview.standing is Standing.FAILED else ""


def _numbers(overview: Overview) -> list[str]:
    numbers = []
    if overview.seconds_left is not None:
        numbers.append(f"{sentences.duration(overview.seconds_left)} left")
    if overview.samples_per_second is not None:
        numbers.append(f"{overview.samples_per_second:,.0f} samples/s")
    if overview.loss is not None:
        numbers.append(f"loss {overview.loss:.4g}")
    if overview.accuracy is not None:
        numbers.append(f"accuracy {overview.accuracy:.2%}")
    if saved := overview.checkpoint:
        age = sentences.duration(max(0.0, overview.at - saved.time))
        done = f"after epoch {saved.epoch - 1}" if saved.epoch > 1 else "at the beginning"
        where = f"epoch {saved.epoch}, position {saved.position}" if saved.position else done
        numbers.append(f"checkpoint {age} ago ({where})")
    return numbers


def _start(start: Start) -> str:
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in start.phases.items())
    return f"first step {start.seconds:.1f} s after the first pod was created: {phases}"


def _pods(overview: Overview, width: int) -> Iterator[RenderableType]:
    narrow = width < _NARROW
    rows = Table(box=None, pad_edge=False, header_style="bold")
    rows.add_column("pod", overflow="fold")
    if not narrow:
        rows.add_column("ranks")
    rows.add_column("does", overflow="fold")
    bars = any(pod.steps for pod in overview.pods)
    if bars:
        rows.add_column("epoch", width=10 if narrow else 24)
        if not narrow:
            rows.add_column("samples/s", justify="right")
    restarted = any(pod.restarts for pod in overview.pods)
    if restarted:
        rows.add_column("re." if narrow else "restarts", justify="right")
    shown, slowest = overview.pods, overview.straggler.slow if overview.straggler else None
    if len(shown) > _PODS:
        usual = max({pod.does for pod in shown}, key=[pod.does for pod in shown].count)
        shown = tuple(pod for pod in shown if pod.does != usual or pod.name == slowest)[:_PODS]
        yield Text(f"{len(overview.pods)} pods; most of them: {usual}")
    for pod in shown:
        rows.add_row(*_cells(pod, slowest, narrow, bars, restarted))
    if shown:
        yield rows
    if overview.straggler:
        yield Text(_slowest(overview.straggler), "yellow")


def _slowest(straggler: Straggler) -> str:
    return f"slowest: {straggler.slow}: {sentences.of_straggler(straggler)}"


def _cells(pod: PodRow, slowest: str | None, narrow: bool, bars: bool, restarted: bool) -> Iterator[RenderableType]:
    yield Text(pod.name, "yellow" if pod.name == slowest else "default")
    if not narrow:
        yield Text(_ranks(pod.ranks))
    yield Text(pod.does)
    if bars:
        yield ProgressBar(total=pod.steps, completed=pod.step or 0) if pod.steps else Text()
        if not narrow:
            yield Text(f"{pod.samples_per_second:,.0f}" if pod.samples_per_second is not None else "")
    if restarted:
        yield Text(str(pod.restarts))


def _bar(share: float, width: int) -> RenderableType:
    """A bar of its own line, which Rich's does not end."""
    grid = Table.grid()
    grid.add_row(ProgressBar(total=1.0, completed=share, width=width))
    return grid


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def _restarts(restarts: tuple[Restart, ...]) -> Iterator[RenderableType]:
    """Each fault once: the ends of other pods that it has caused are counted."""
    faults: list[list[Restart]] = []
    for restart in restarts:
        fault = next((each for each in reversed(faults) if _same(each, restart)), None)
        if fault:
            fault.append(restart)
        else:
            faults.append([restart])
    yield Text(f"restarts: {len(restarts)} of pods, by {counted(len(faults), 'fault')}", "bold")
    for fault in faults[-_RESTARTS:]:
        first = min(fault, key=lambda each: each.kind == "consequence")
        if first.kind == "consequence" and first.cause:
            cause = first.cause
        elif first.code is None:
            cause = "ended without a word, as after SIGKILL, a deletion, or the loss of its node"
        else:
            cause = f"ended with {first.code}" + (f": {first.cause}" if first.cause else "")
        others = f"; {len(fault) - 1} other{'s' * (len(fault) > 2)} with it" if len(fault) > 1 else ""
        yield Text(f"  {clock(first.time)}  {first.pod} {cause}{others}", "default")


def _same(fault: list[Restart], restart: Restart) -> bool:
    """Whether a restart is of a fault: by its time, or, as clocks can differ, by the attempt that has ended with it."""
    if restart.time - fault[0].time < _TOGETHER:
        return True
    ended = restart.attempt is not None and (restart.run, restart.attempt) == (fault[0].run, fault[0].attempt)
    return ended and restart.pod not in [each.pod for each in fault]


def clock(moment: float) -> str:
    """The time of day here."""
    return datetime.fromtimestamp(moment).strftime("%H:%M:%S")
