"""The verdict for people (a table and sentences) and for programs (JSON)."""

import json

from torchtally.proof import table
from torchtally.proof.line import TallyLine

from . import phrasing
from .verdict import Verdict, fulfilled

_CELLS = (*table.HEADER, "world")
_MANY = 64  # ranks; beyond, only those whose lines report a fault are shown, as in rank 0's table
JSON_HELP = """\
--json prints one object: "holds" (the exit status as a boolean), "run" and "attempt" (null when there is none to
judge), "last_line" (whether the run's last line is there), "model" (the hash of the final weights, "sha256:...") and
"discarded" (samples consumed by steps that no checkpoint kept), both of them from the last line and null without it,
"problems" and "notes" (sentences), "tallies" (the lines judged, with the fields of the tally line and, on
"rank": "all", "ok", which is true if its phase and epoch has no problem)."""


def as_json(verdict: Verdict) -> str:
    lines = []
    for line in verdict.lines:
        values = line.values()
        if line.rank == "all":
            values["ok"] = not verdict.of(line.block)
        lines.append(values)
    report = {
        "holds": verdict.holds,
        "run": verdict.run,
        "attempt": verdict.attempt,
        "last_line": verdict.last is not None,
        "model": verdict.last and verdict.last.model,
        "discarded": verdict.last and verdict.last.discarded,
        "problems": [str(problem) for problem in verdict.problems],
        "notes": verdict.notes,
        "tallies": lines,
    }
    return json.dumps(report, indent=2)


def as_text(verdict: Verdict, *, encoding: str, colour: bool) -> str:
    good, bad = _marks(encoding, colour)
    text = []
    if verdict.lines:
        shown = [line for line in verdict.lines if _is_shown(line)]
        header, *rows = table.aligned(table.cells({name: getattr(line, name) for name in _CELLS}) for line in shown)
        text.append(header)
        for line, row in zip(shown, rows, strict=True):
            text.append(row + (f"  {_sentence(verdict, line, good, bad)}" * (line.rank == "all")))
        text.append("")
    text += [f"note: {note}" for note in verdict.notes]
    text += [f"{bad} {problem}" for problem in verdict.problems]
    text.append(f"{good} {phrasing.summary(verdict)}" if verdict.holds else f"{bad} the proof does not hold")
    return "\n".join(text)


def _is_shown(line: TallyLine) -> bool:
    return line.rank == "all" or line.world <= _MANY or (line.lost, line.doubled) != (0, 0)


def _sentence(verdict: Verdict, line: TallyLine, good: str, bad: str) -> str:
    problems = verdict.of(line.block)
    if not problems:
        return f"{good} {fulfilled(line)}"
    return f"{bad} {problems[0].text}" + (f", and {len(problems) - 1} more below" if len(problems) > 1 else "")


def _marks(encoding: str, colour: bool) -> tuple[str, str]:
    try:
        "✓✗".encode(encoding)
        good, bad = "✓", "✗"
    except UnicodeEncodeError:
        good, bad = "ok:", "not ok:"
    return (f"\033[32m{good}\033[0m", f"\033[31m{bad}\033[0m") if colour else (good, bad)
