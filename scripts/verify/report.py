"""The verdict for people (a table and sentences) and for programs (JSON)."""

import dataclasses
import json

from torchtally import table

from .lines import Tally
from .verdict import Verdict, fulfilled

JSON_HELP = """\
--json prints one object: "holds" (the exit status as a boolean), "run" and "attempt" (null when there is none to
judge), "problems" and "notes" (sentences), "tallies" (the lines judged, with the fields of the tally line and, on
"rank": "all", "ok", which is true when its phase and epoch has no problem)."""


def as_json(verdict: Verdict) -> str:
    tallies = []
    for tally in verdict.tallies:
        values = dataclasses.asdict(tally) | {"digest": str(tally.digest)}
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
        header, *rows = table.aligned(table.cells(dataclasses.asdict(tally)) for tally in verdict.tallies)
        text.append(header)
        for tally, row in zip(verdict.tallies, rows, strict=True):
            text.append(row + (f"  {_sentence(verdict, tally, good, bad)}" * (tally.rank == "all")))
        text.append("")
    text += [f"note: {note}" for note in verdict.notes]
    text += [f"{bad} {problem}" for problem in verdict.problems]
    text.append(f"{good} {_summary(verdict)}" if verdict.holds else f"{bad} the proof does not hold")
    return "\n".join(text)


def _sentence(verdict: Verdict, tally: Tally, good: str, bad: str) -> str:
    problems = verdict.of(tally.block)
    if not problems:
        return f"{good} {fulfilled(tally)}"
    return f"{bad} {problems[0].text}" + (f", and {len(problems) - 1} more below" if len(problems) > 1 else "")


def _summary(verdict: Verdict) -> str:
    last = verdict.tallies[-1]
    phases = ", ".join(f"{phase} {count} epoch{'s' * (count != 1)}" for phase, count in last.plan.items())
    return f"the proof holds: run {verdict.run}, {last.world} rank{'s' * (last.world != 1)}, {phases}"


def _marks(encoding: str, colour: bool) -> tuple[str, str]:
    try:
        "✓✗".encode(encoding)
        good, bad = "✓", "✗"
    except UnicodeEncodeError:
        good, bad = "ok:", "not ok:"
    return (f"\033[32m{good}\033[0m", f"\033[31m{bad}\033[0m") if colour else (good, bad)
