"""The verdict for people, as a table and sentences, and for programs, as JSON."""

import os
import sys
from collections.abc import Iterator
from typing import Any

from torchtally.observed.finding import Sign
from torchtally.observed.judge import Observation, Observed, Outcome, Pass
from torchtally.proof import table

HEADER = ("phase", "pass", "pod", "rank", "samples", "handed out", "lost", "duplicated")
_LEFT = ("phase", "pod")
_MANY = 64  # ranks; beyond, rows of all ranks together are shown alone


def on_stderr(observation: Observation) -> None:
    """Print it for people. Raises OSError if the reader has left."""
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(as_text(observation, encoding=sys.stderr.encoding, colour=colour), file=sys.stderr, flush=True)


def as_text(observation: Observation, *, encoding: str, colour: bool) -> str:
    """The table, the notes, the faults, and a conclusion."""
    good, bad = table.marks(encoding)
    if colour:
        good, bad = f"\033[32m{good}\033[0m", f"\033[31m{bad}\033[0m"
    text: list[str] = []
    for loader in observation.loaders:
        text += [*_table(loader, observation, good, bad), ""]
    text += [f"note: {each}" for each in [*observation.notes, *observation.remarks]]
    text += [f"{bad} {each}" for each in [*observation.missing, *observation.faults]]
    mark = {Outcome.OBSERVED: good if is_judged(observation) else ""}.get(observation.outcome, bad)
    text.append(f"{mark} {conclusion(observation)}".lstrip())
    return "\n".join(text)


def as_json(observation: Observation) -> dict[str, Any]:
    """The same as an object."""
    return {
        "outcome": str(observation.outcome),
        "world": observation.world,
        "attempts": observation.attempts,
        "faults": observation.faults,
        "notes": [*observation.notes, *observation.remarks],
        "missing": observation.missing,
        "loaders": [
            {
                "attempt": loader.attempt,
                "loader": loader.loader,
                "phase": loader.phase,
                "dataset": loader.dataset,
                "length": loader.length,
                "passes": [_pass(each) for each in loader.passes],
            }
            for loader in observation.loaders
        ],
    }


def _pass(each: Pass) -> dict[str, Any]:
    counted = each.counted
    return {
        "number": each.number + 1,
        "handed_out": {str(rank): line.samples for rank, line in sorted(each.lines.items())},
        "samples": counted.samples,
        "lost": counted.lost.count if counted.lost else None,
        "duplicated": counted.duplicated.count if counted.duplicated else None,
        "exact": bool(counted.lost and counted.lost.exact),
        "findings": [{"sign": str(each.sign), "text": each.text} for each in counted.findings],
    }


def title(loader: Observed, observation: Observation) -> str:
    """Which loader, of which attempt."""
    attempt = f", attempt {loader.attempt}" if observation.attempts > 1 else ""
    return f"{loader.loader}{attempt}"


def rows(loader: Observed) -> Iterator[tuple[tuple[str, ...], Pass | None]]:
    """The rows below HEADER, of passes that are alike once; with those of all ranks together the pass."""
    for first, last in alike(loader.passes):
        name = span(first, last)
        if len(first.lines) <= _MANY:
            for rank, line in sorted(first.lines.items()):
                samples = line.holds.count if line.holds else line.loader.length
                shown = "" if samples is None else str(samples)
                yield (loader.phase, name, line.process.pod, str(rank), shown, str(line.samples), "", ""), None
        counted = first.counted
        total = sum(line.samples for line in first.lines.values())
        yield (
            (
                loader.phase,
                name,
                "all",
                str(len(first.lines)),
                "" if counted.samples is None else str(counted.samples),
                str(total),
                counted.lost.cell if counted.lost else "",
                counted.duplicated.cell if counted.duplicated else "",
            ),
            first,
        )


def _table(loader: Observed, observation: Observation, good: str, bad: str) -> Iterator[str]:
    yield title(loader, observation)
    shown = [(HEADER, ""), *((row, result(of, good, bad) if of else "") for row, of in rows(loader))]
    widths = [max(map(len, column)) for column in zip(*(row for row, _ in shown), strict=True)]
    for row, end in shown:
        cells = (
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for name, cell, width in zip(HEADER, row, widths, strict=True)
        )
        yield f"{'  '.join(cells)}  {end}".rstrip()


def alike(passes: list[Pass]) -> list[tuple[Pass, Pass]]:
    """First and last of successive passes that look the same in the table."""
    found: list[tuple[Pass, Pass]] = []
    for each in passes:
        if found and found[-1][1].number + 1 == each.number and _look(found[-1][0]) == _look(each):
            found[-1] = found[-1][0], each
        else:
            found.append((each, each))
    return found


def span(first: Pass, last: Pass) -> str:
    """The numbers of these passes, from 1."""
    return str(first.number + 1) if first is last else f"{first.number + 1}-{last.number + 1}"


def _look(each: Pass) -> object:
    counted = each.counted
    lines = tuple((rank, line.process.pod, line.samples) for rank, line in sorted(each.lines.items()))
    return lines, counted.samples, counted.lost, counted.duplicated, [finding.about for finding in counted.findings]


def result(each: Pass, good: str, bad: str) -> str:
    """What is to be said first of a pass."""
    findings = each.counted.findings
    for sign in (Sign.FAULT, Sign.RIGHT, Sign.NOTE):
        if own := [finding for finding in findings if finding.sign is sign]:
            text = own[0].text
            if sign is Sign.FAULT:
                return f"{bad} {text.partition(':')[0]}"
            return f"{good} {text}" if sign is Sign.RIGHT else f"note: {text.partition(':')[0]}"
    return ""


def conclusion(observation: Observation) -> str:
    """Return the final sentence, which names the outcome."""
    passes = sum(len(loader.passes) for loader in observation.loaders)
    seen = f"{observation.world} rank{'s' * (observation.world > 1)}, {passes} pass{'es' * (passes != 1)}"
    if observation.attempts > 1:
        seen += f", {observation.attempts} attempts"
    if observation.outcome is Outcome.FAULTY:
        count = len(observation.faults)
        return f"observed: {seen}, {count} fault{'s' * (count > 1)} in how samples are handed out"
    if observation.outcome is Outcome.INCOMPLETE:
        return f"incomplete: {seen}, and lines are missing"
    if not passes:
        return f"nothing was observed: {seen}"
    return f"observed: {seen}, no fault in how samples are handed out (an observation, not a proof)"


def is_judged(observation: Observation) -> bool:
    """Whether something was found to be right, and no training was left unjudged."""
    found = any(finding.sign is Sign.RIGHT for loader in observation.loaders for finding, _ in loader.all_findings)
    trains = [loader for loader in observation.loaders if loader.trains]
    if observation.unseen or not found:
        return False
    # Without a step of an optimizer, any loader may be that of a training.
    return all(each.counted.is_judged for loader in trains or observation.loaders for each in loader.passes)
