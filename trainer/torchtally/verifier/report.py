"""The verdicts for people (a table and sentences) and for programs (JSON)."""

import json
from typing import Any

from torchtally.observed import report as observed
from torchtally.observed.judge import Observation
from torchtally.proof import table
from torchtally.proof.line import TallyLine
from torchtally.verifier.conclusion import conclusion, summary_of_runs
from torchtally.verifier.line_groups import in_order
from torchtally.verifier.outcome import Outcome, worst
from torchtally.verifier.verdict import Verdict, fulfilled

_CELLS = (*table.HEADER, "world")
_MANY = 64  # ranks; beyond, only those whose lines report a fault are shown, as in rank 0's table
JSON_HELP = """\
--json prints one object: "outcome" ("proved", "disproved", "failed", "pending", or "incomplete": the exit status as a
word), "holds" (whether it is "proved"), "run" and "attempt" (null when there is none to
judge), "last_line" (whether the run's last line is there), "model" (the hash of the final weights, "sha256:...") and
"discarded" (samples consumed by steps that no checkpoint kept) and "stopped" (why phases end before their plan, or
null), which are from the last line and null without it,
"problems" and "notes" (sentences), "tallies" (the lines judged, with the fields of the tally line and, on
"rank": "all", "ok", which is true if its phase and epoch has no problem). Of a log that holds several runs it prints
"outcome", the worst of theirs, "holds", which is true if all of them are proved, and "runs", a list of such
objects. Of a program that keeps no account it prints "outcome" ("observed", "faulty", ...), "holds", which is false,
and "observation": "faults", "notes", "missing" (sentences), and "loaders" with their "passes"."""


def as_json(verdicts: list[Verdict], observation: Observation | None = None, outcome: Outcome | None = None) -> str:
    reports = [_report(verdict) for verdict in verdicts]
    outcome = outcome or worst(verdict.outcome for verdict in verdicts)
    found: dict[str, Any] = {"outcome": outcome, "holds": outcome is Outcome.PROVED}
    if len(reports) == 1 and not observation:
        found = reports[0]
    elif reports:
        found["runs"] = reports
    if observation:
        found["observation"] = observed.as_json(observation)
    return json.dumps(found, indent=2)


def _report(verdict: Verdict) -> dict[str, Any]:
    lines = []
    for line in verdict.lines:
        values = line.values()
        if line.rank == "all":
            values["ok"] = not verdict.of(line.block)
        lines.append(values)
    return {
        "outcome": verdict.outcome,
        "holds": verdict.outcome is Outcome.PROVED,
        "run": verdict.run,
        "attempt": verdict.attempt,
        "last_line": verdict.last is not None,
        "model": verdict.last and verdict.last.model,
        "discarded": verdict.last and verdict.last.discarded,
        "stopped": verdict.last and verdict.last.stopped,
        "problems": [str(problem) for problem in verdict.problems],
        "notes": verdict.notes,
        "tallies": lines,
    }


def as_text(verdicts: list[Verdict], observation: Observation | None = None, *, encoding: str, colour: bool) -> str:
    texts = [_of_runs(verdicts, *_marks(encoding, colour))] if verdicts else []
    if observation:
        texts.append(observed.as_text(observation, encoding=encoding, colour=colour))
    return "\n\n".join(texts)


def _of_runs(verdicts: list[Verdict], good: str, bad: str) -> str:
    texts = [_text(verdict, good, bad) for verdict in verdicts]
    if len(verdicts) == 1:
        return texts[0]
    texts = [f"run {verdict.run}\n{text}" for verdict, text in zip(verdicts, texts, strict=True)]
    outcome = worst(verdict.outcome for verdict in verdicts)
    mark = good if outcome is Outcome.PROVED else f"{bad} {outcome}:"
    return "\n\n".join([*texts, f"{mark} {summary_of_runs(verdicts)}"])


def _text(verdict: Verdict, good: str, bad: str) -> str:
    text = []
    if verdict.groups:
        shown = [line for line in in_order(verdict.groups, _MANY) if _is_shown(line)]
        header, *rows = table.aligned(table.cells({name: getattr(line, name) for name in _CELLS}) for line in shown)
        text.append(header)
        for line, row in zip(shown, rows, strict=True):
            text.append(row + (f"  {_sentence(verdict, line, good, bad)}" * (line.rank == "all")))
            if not verdict.of(line.block):
                text += map(table.under, line.sources)
        text.append("")
    text += [f"note: {note}" for note in verdict.notes]
    text += [f"{bad} {problem}" for problem in verdict.problems]
    text.append(f"{good if verdict.outcome is Outcome.PROVED else bad} {conclusion(verdict)}")
    return "\n".join(text)


def _is_shown(line: TallyLine) -> bool:
    return line.rank == "all" or line.world <= _MANY or (line.lost, line.duplicated) != (0, 0)


def _sentence(verdict: Verdict, line: TallyLine, good: str, bad: str) -> str:
    problems = verdict.of(line.block)
    if not problems:
        return f"{good} {fulfilled(line)}"
    return f"{bad} {problems[0].text}" + (f", and {len(problems) - 1} more below" if len(problems) > 1 else "")


def _marks(encoding: str, colour: bool) -> tuple[str, str]:
    good, bad = table.marks(encoding)
    return (f"\033[32m{good}\033[0m", f"\033[31m{bad}\033[0m") if colour else (good, bad)
