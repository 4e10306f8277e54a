"""What was observed of a program that keeps no account: a shard map by ranks for each of its loaders."""

from collections.abc import Iterator, Sequence
from itertools import chain

from torchtally.observed import report
from torchtally.observed.finding import Sign
from torchtally.observed.judge import Observation, Observed, Pass
from torchtally.page import shard_map, summary
from torchtally.page.chart import HOW_TO_ZOOM, Chart, Row, coloured
from torchtally.page.markup import Html, details, element, table
from torchtally.record.sentences import date, duration
from torchtally.verifier.outcome import Outcome
from torchtally.verifier.phrasing import counted

TITLE = "Observed training"
_FAULT, _NOTE, _RIGHT, _OPEN, _UNSEEN = "fault", "note", "as expected", "not judged", "no line in these logs"
_COLOURS = {_RIGHT: "@exact", _NOTE: "@unchecked", _FAULT: "@wrong", _OPEN: "@third", _UNSEEN: "@unseen"}
_STATES = {Sign.FAULT: _FAULT, Sign.NOTE: _NOTE, Sign.RIGHT: _RIGHT}  # from the worst to the best
_MARKS = {Outcome.OBSERVED: "✓", Outcome.FAULTY: "✗", Outcome.FAILED: "✗"}
_MANY = 3000  # cells; beyond, successive passes that are alike are one
_MOST = 12_000  # cells; beyond, there is a row for all ranks together alone
_LOADERS = 64
_FEW = 12  # passes, each of which has its number on the axis
_ROWS = 400  # of a table


def mark(observation: Observation, outcome: Outcome) -> str:
    """The sign of an outcome; none where nothing was judged."""
    if outcome is Outcome.OBSERVED and not report.is_judged(observation):
        return ""
    return _MARKS.get(outcome, "…")


def header(observation: Observation, outcome: Outcome) -> Iterator[Html]:
    """The head of a page about nothing else."""
    lines = [line for loader in observation.loaders for each in loader.passes for line in each.lines.values()]
    yield element("h1", TITLE)
    if lines:
        began, over = min(line.process.began for line in lines) / 1000, max(line.at for line in lines)
        yield element("p", f"{date(began)} · {duration(max(0.0, over - began))}", class_="of")
    yield box(observation, outcome)
    pods = len({line.process.pod for line in lines})
    passes = sum(len(loader.passes) for loader in observation.loaders)
    facts = [("Ranks", observation.world, f"in {pods} pods" if pods > 1 else ""), ("Passes", passes, "of all loaders")]
    if observation.attempts > 1:
        facts.append(("Attempts", observation.attempts, ""))
    yield from summary.facts(facts)


def box(observation: Observation, outcome: Outcome) -> Html:
    """What the observation comes to, with its faults and notes."""
    problems, notes = [*observation.faults, *observation.missing], [*observation.notes, *observation.remarks]
    return summary.box(mark(observation, outcome), outcome, report.conclusion(observation), problems, notes)


def maps(observation: Observation) -> list[Chart]:
    """The map of each loader."""
    return [_map(loader, f"observed-{at}") for at, loader in enumerate(observation.loaders[:_LOADERS])]


def shards(observation: Observation, charts: Sequence[Chart]) -> Iterator[Html]:
    """The maps, each with its table."""
    yield element(
        "p",
        "Each row is a rank, and each column a pass: what a DataLoader handed out between its beginning and its end. "
        "The row “all” has all ranks together. Batches that were loaded in advance and never handed out do not count. ",
        *HOW_TO_ZOOM,
    )
    for loader, chart in zip(observation.loaders, charts, strict=False):
        rows = [[*row, report.result(of, "✓", "✗") if of else ""] for row, of in report.rows(loader)]
        numbers = [name for name in report.HEADER if name not in ("phase", "pod")]
        shown = table(chart.label, [*report.HEADER, "result"], rows[:_ROWS], numbers)
        caption = f"{report.title(loader, observation)}: {loader.phase}"
        yield element("figure", element("figcaption", caption), chart.place, details("As a table", shown))
    if (more := len(observation.loaders) - len(charts)) > 0:
        yield element("p", f"{more} more loaders are not shown.")


def method() -> Iterator[Html]:
    """How it was seen."""
    yield element("h2", "How it was seen")
    yield element(
        "p",
        "In each rank, an observer saw what the DataLoaders of PyTorch handed out to the program, which was not "
        "changed. This page is an observation, not a proof: it knows neither what the program did with the samples nor "
        "what was planned. “~” stands before a number that is estimated.",
    )
    yield element("pre", element("code", "torchtally verify FOLDER    # judges the stored logs again\n"))


def _map(loader: Observed, name: str) -> Chart:
    lines = [line for each in loader.passes for line in each.lines.values()]
    ranks, passes = max(line.process.world for line in lines), loader.passes[-1].number + 1
    cells = [*_cells(loader, ranks)]
    layers = [
        shard_map.cell_layer(
            ranks,
            "pass",
            [0.5, passes + 0.5],
            coloured("state", _COLOURS, {cell["state"] for cell in cells}),
            [
                {"field": "pass"},
                {"field": "state", "title": "samples"},
                {"field": "handed", "title": "handed out"},
                {"field": "lost", "title": "lost by all ranks"},
                {"field": "duplicated", "title": "duplicated by all ranks"},
            ],
            said="datum.who + ', pass ' + datum.pass + ': ' + datum.state",
            **({"values": [*range(1, passes + 1)]} if passes <= _FEW else {}),
        )
    ]
    if ranks <= shard_map.FEW and any(cell["state"] == _FAULT for cell in cells):
        layers.append(shard_map.cross_layer(ranks, _FAULT))
    return Chart(
        name=name,
        label=f"Shard map of {loader.loader}: {counted(ranks, 'rank')} over {passes} pass{'es' * (passes != 1)}.",
        height=shard_map.height(ranks),
        spec={"layer": layers},
        rows={"cells": cells},
        zooms=True,
    )


def _cells(loader: Observed, ranks: int) -> Iterator[Row]:
    spans = [(each, each) for each in loader.passes]
    if len(spans) * ranks > _MANY:
        spans = report.alike(loader.passes)
    shown = range(ranks) if len(spans) * ranks <= _MOST else ()
    for first, last in spans:
        counted, lines = first.counted, first.lines
        common = {
            "begin": first.number + 0.5,
            "end": last.number + 1.5,
            "pass": report.span(first, last),
            "lost": str(counted.lost or "not known"),
            "duplicated": str(counted.duplicated or "not known"),
        }
        state = _state(loader, first)
        total = sum(line.samples for line in lines.values())
        yield {"rank": shard_map.ALL, "state": state, "handed": total, **common}
        for rank in shown:
            handed = lines[rank].samples if rank in lines else None
            yield {"rank": rank, "state": _UNSEEN if handed is None else state, "handed": handed, **common}


def _state(loader: Observed, each: Pass) -> str:
    """The worst that is found in a pass. Faults of several passes are of each of them."""
    together = (finding for finding in loader.findings if finding.sign is Sign.FAULT)
    signs = {finding.sign for finding in chain(each.counted.findings, together)}
    return next((state for sign, state in _STATES.items() if sign in signs), _OPEN)
