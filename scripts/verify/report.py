"""The verdict for people (a table and sentences) and for programs (JSON)."""

import dataclasses
import json

from .lines import Tally
from .verdict import Verdict, fulfilled

JSON_HELP = """\
--json prints one object: "holds" (the exit status as a boolean), "run" and "attempt" (null when there is none to
judge), "problems" and "notes" (sentences), "tallies" (the lines judged, with the fields of the tally line and, on
"rank": "all", "ok", which is true when its phase and epoch has no problem)."""

_HEADER = ("phase", "epoch", "pod", "rank", "expected", "consumed", "lost", "doubled")
_LEFT = ("phase", "pod")
_POD_WIDTH = 16  # of the table in the README; longer names widen it


def as_json(verdict: Verdict) -> str:
    tallies = []
    for tally in verdict.tallies:
        values = dataclasses.asdict(tally) | {"digest": f"{tally.digest:016x}"}
        if tally.rank == "all":
            values["ok"] = not verdict.of(tally.block)
        tallies.append(values)
    report = {
        "holds": verdict.holds,
        "run": verdict.run,
        "attempt": verdict.attempt,
        "problems": [str(problem) for problem in verdict.problems],
        "notes": verdict.notes,
        "tallies": tallies,
    }
    return json.dumps(report, indent=2)


def as_text(verdict: Verdict, *, encoding: str, colour: bool) -> str:
    good, bad = _marks(encoding, colour)
    text = []
    if verdict.tallies:
        rows = [_cells(tally) for tally in verdict.tallies]
        widths = [max(map(len, column)) for column in zip(_HEADER, *rows, strict=True)]
        widths[_HEADER.index("pod")] = max(widths[_HEADER.index("pod")], _POD_WIDTH)
        text.append(_aligned(_HEADER, widths))
        for tally, row in zip(verdict.tallies, rows, strict=True):
            text.append(_aligned(row, widths) + (f"  {_sentence(verdict, tally, good, bad)}" * (tally.rank == "all")))
        text.append("")
    text += [f"note: {note}" for note in verdict.notes]
    text += [f"{bad} {problem}" for problem in verdict.problems]
    text.append(f"{good} {_summary(verdict)}" if verdict.holds else f"{bad} the proof does not hold")
    return "\n".join(text)


def _cells(tally: Tally) -> tuple[str, ...]:
    together = tally.rank == "all"
    pod, rank = ("all", tally.world) if together else (tally.pod, tally.rank)
    values = (tally.phase, tally.epoch, pod, rank, tally.expected, tally.consumed, tally.lost, tally.doubled)
    return tuple(map(str, values))


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    columns = zip(_HEADER, cells, widths, strict=True)
    return "  ".join(cell.ljust(width) if name in _LEFT else cell.rjust(width) for name, cell, width in columns)


def _sentence(verdict: Verdict, tally: Tally, good: str, bad: str) -> str:
    problems = verdict.of(tally.block)
    if not problems:
        return f"{good} {fulfilled(tally)}"
    return f"{bad} {problems[0].text}" + (f", and {len(problems) - 1} more below" if len(problems) > 1 else "")


def _summary(verdict: Verdict) -> str:
    first = verdict.tallies[0]
    phases = ", ".join(f"{phase} {count} epoch{'s' * (count != 1)}" for phase, count in first.plan.items())
    return f"the proof holds: run {verdict.run}, {first.world} rank{'s' * (first.world != 1)}, {phases}"


def _marks(encoding: str, colour: bool) -> tuple[str, str]:
    try:
        "✓✗".encode(encoding)
        good, bad = "✓", "✗"
    except UnicodeEncodeError:
        good, bad = "ok:", "not ok:"
    return (f"\033[32m{good}\033[0m", f"\033[31m{bad}\033[0m") if colour else (good, bad)
