"""The shard map: what each rank consumed in each epoch, and where in the order samples were lost or duplicated."""

import math
from collections.abc import Iterator, Set
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from torchtally.page.chart import Chart, Row, Spec, coloured, restarts, zoom
from torchtally.page.wrong import DROPPED, EXACT, UNCHECKED, WRONG, Place, doubted, places, state_of
from torchtally.proof.line import TallyLine
from torchtally.verifier.phrasing import counted
from torchtally.verifier.problem import Block
from torchtally.verifier.verdict import Verdict

_UNSEEN = "no line in these logs"
_COLOURS = {EXACT: "@exact", DROPPED: "@dropped", WRONG: "@wrong", UNCHECKED: "@unchecked", _UNSEEN: "@unseen"}
_KINDS = {"lost": "@lost", "duplicated": "@duplicated"}
ALL = -1  # the row of all ranks together
FEW = 40  # ranks, whose rows have room between them
_LABELED = 24  # epochs that have a label each
_MOST = 12_000  # cells


@dataclass(frozen=True)
class _Cell:
    """Successive epochs of a rank that are alike; an epoch e reaches from e to e + 1."""

    rank: int
    begin: float
    end: float
    state: str
    lost: int | None
    duplicated: int | None


def chart(verdict: Verdict, phase: str, began_again: list[Row]) -> Chart:
    """The map of a phase that has lines."""
    lines = [line for line in verdict.lines if line.phase == phase]
    doubts = doubted(verdict)
    ranks = max(line.world for line in lines)
    epochs = max(lines[0].plan[phase], *(line.epoch for line in lines))
    cells = _cells(lines, doubts, ranks)
    bad = (line for line in lines if state_of(line, doubts) == WRONG)
    marks = [_mark(place) for place in places(bad)]
    half = _half(ranks)
    layers = [
        cell_layer(
            ranks,
            "epoch, and how far into its order",
            [1, epochs + 1],
            coloured("state", _COLOURS, {cell.state for cell in cells}),
            [
                {"field": "begin", "title": "from epoch", "format": ",~r"},
                {"field": "end", "title": "before epoch", "format": ",~r"},
                {"field": "state", "title": "samples"},
                {"field": "lost"},
                {"field": "duplicated"},
            ],
            said="datum.who + ' from epoch ' + datum.begin + ' on: ' + datum.state",
            **_epoch_axis(epochs),
        )
    ]
    if ranks <= FEW and any(cell.state == WRONG for cell in cells):
        layers.append(cross_layer(ranks))
    layers += _mark_layers(ranks, half, {row["kind"] for row in marks})
    if phase == "train" and began_again:
        layers.append(restarts("where"))
    return Chart(
        name=f"map-{[*lines[0].plan].index(phase)}",
        label=f"Shard map of the phase {phase}: {counted(ranks, 'rank')} over {counted(epochs, 'epoch')}.",
        height=height(ranks),
        spec={"layer": layers, "resolve": {"scale": {"color": "independent", "shape": "independent"}}},
        rows={"cells": [asdict(cell) for cell in cells], "marks": marks, "restarts": began_again},
        zooms=True,
    )


def is_planned(chart: Chart) -> bool:
    """Whether all samples of a map are as planned."""
    return all(cell["state"] == EXACT for cell in chart.rows["cells"])


def _epoch_axis(epochs: int) -> Spec:
    """The number of an epoch below its cells; of many, where they begin."""
    if epochs > _LABELED:
        return {"tickMinStep": 1}
    middles = [epoch + 0.5 for epoch in range(1, epochs + 1)]
    return {"values": middles, "labelExpr": "format(floor(datum.value), 'd')", "ticks": False}


def height(ranks: int) -> int:
    """Of a map with these rows."""
    return min(max(22 * (ranks + 1), 90), 520)


def _half(ranks: int) -> float:
    return 0.42 if ranks <= FEW else 0.5


def cell_layer(
    ranks: int, title: str, domain: list[float], colour: Spec, tip: list[Spec], said: str, **axis: Any
) -> Spec:
    """The cells of a map: a row for each rank, and along x what `title` names. `said`: an expression for a cell."""
    half = _half(ranks)
    return {
        "data": {"name": "cells"},
        "transform": [
            {"calculate": f"datum.rank - {half}", "as": "top"},
            {"calculate": f"datum.rank + {half}", "as": "bottom"},
            {"calculate": "datum.rank < 0 ? 'all ranks together' : 'rank ' + datum.rank", "as": "who"},
            {"calculate": said, "as": "said"},
        ],
        "params": zoom("x") if ranks <= 16 else zoom("x", "y"),
        "mark": {"type": "rect", "clip": True, "stroke": "@background", "strokeWidth": 1 if ranks <= FEW else 0},
        "encoding": {
            "x": {
                "field": "begin",
                "type": "quantitative",
                "title": title,
                "scale": {"domain": domain, "nice": False, "zero": False},
                "axis": {
                    "grid": False,
                    "format": ",~r",
                    "tickCount": min(math.ceil(domain[1] - domain[0]) + 1, 12),
                    "labelBound": True,
                    **axis,
                },
            },
            "x2": {"field": "end"},
            "y": {
                "field": "top",
                "type": "quantitative",
                "title": "rank",
                "scale": {"domain": [-1.5, ranks - 0.5], "reverse": True, "nice": False, "zero": False},
                "axis": _rank_axis(ranks),
            },
            "y2": {"field": "bottom"},
            "color": colour,
            "description": {"field": "said"},
            "tooltip": [
                {"field": "who"},
                *tip,
            ],
        },
    }


def _rank_axis(ranks: int) -> Spec:
    shown: Spec = {"values": [*range(ALL, ranks)]} if ranks <= 16 else {"tickMinStep": 1}
    text = f"datum.value == {ALL} ? 'all' : format(datum.value, '~d')"
    return {"grid": False, "ticks": False, "domain": False, "labelOverlap": False, "labelExpr": text, **shown}


def cross_layer(ranks: int, state: str = WRONG) -> Spec:
    """A cross in each cell that is wrong, as not everybody sees its color."""
    return {
        "data": {"name": "cells"},
        "transform": [
            {"filter": f"datum.state == '{state}'"},
            {"calculate": "(datum.begin + datum.end) / 2", "as": "middle"},
        ],
        "mark": {"type": "text", "text": "✗", "color": "@lost", "fontSize": 12, "clip": True, "aria": False},
        "encoding": {
            "x": {"field": "middle", "type": "quantitative"},
            "y": {"field": "rank", "type": "quantitative", "title": "rank", "axis": _rank_axis(ranks)},
        },
    }


def _mark_layers(ranks: int, half: float, kinds: set[str]) -> list[Spec]:
    """What is lost or duplicated: as wide as it is, and with a symbol, as most of it is too small to be seen."""
    if not kinds:
        return []
    tip = [{"field": name} for name in ("what", "who", "epoch", "positions", "samples")]
    colour = {**coloured("kind", _KINDS, kinds), "legend": None}
    shape = coloured("kind", {"lost": "triangle-down", "duplicated": "triangle-up"}, kinds)
    del shape["legend"]["symbolType"]
    stretch: Spec = {
        "data": {"name": "marks"},
        "transform": [
            {"calculate": f"datum.rank - {half}", "as": "top"},
            {"calculate": f"datum.rank + {half}", "as": "bottom"},
        ],
        "mark": {"type": "rect", "clip": True},
        "encoding": {
            "x": {"field": "begin", "type": "quantitative"},
            "x2": {"field": "end"},
            "y": {"field": "top", "type": "quantitative", "title": "rank", "axis": _rank_axis(ranks)},
            "y2": {"field": "bottom"},
            "color": colour,
            "tooltip": tip,
        },
    }
    symbol: Spec = {
        "data": {"name": "marks"},
        "transform": [{"calculate": "(datum.begin + datum.end) / 2", "as": "middle"}],
        "mark": {"type": "point", "filled": True, "size": 90, "clip": True, "stroke": "@background", "opacity": 1},
        "encoding": {
            "x": {"field": "middle", "type": "quantitative"},
            "y": {"field": "rank", "type": "quantitative", "title": "rank", "axis": _rank_axis(ranks)},
            "color": {**colour, "legend": shape["legend"]},
            "shape": shape,
            "description": {"field": "what"},
            "tooltip": tip,
        },
    }
    return [stretch, symbol]


def _mark(place: Place) -> Row:
    line = place.line
    return {
        "rank": _row(line),
        "begin": _rounded(line.epoch + place.first / line.n),
        "end": _rounded(line.epoch + (place.last + 1) / line.n),
        "kind": place.kind,
        "what": place.what,
        "who": "all ranks together" if line.rank == "all" else f"rank {line.rank}",
        "epoch": line.epoch,
        "positions": place.positions,
        "samples": place.samples,
    }


def _cells(lines: list[TallyLine], doubts: Set[Block], ranks: int) -> list[_Cell]:
    """The cells of all ranks: if they are too many, those of a rank that are wrong are one, with all between them."""
    rows = [_of_rank(row, [*own], doubts, many=len(lines) > 3000) for row, own in _by_row(lines)]
    if sum(map(len, rows)) > _MOST:
        rows = [[*_with_one_that_is_wrong(row)] for row in rows]
    cells = [cell for row in rows for cell in row]
    seen = {cell.rank for cell in cells}
    last = max(cell.end for cell in cells)
    return [*cells, *(_Cell(rank, 1, last, _UNSEEN, None, None) for rank in range(ranks) if rank not in seen)]


def _by_row(lines: list[TallyLine]) -> Iterator[tuple[int, Iterator[TallyLine]]]:
    return groupby(sorted(lines, key=lambda line: (_row(line), line.epoch)), key=_row)


def _row(line: TallyLine) -> int:
    return ALL if line.rank == "all" else line.rank


def _of_rank(row: int, lines: list[TallyLine], doubts: Set[Block], *, many: bool) -> list[_Cell]:
    cells: list[_Cell] = []
    for line in lines:
        start = 0 if row == ALL else line.start
        begin, end = line.epoch + start / line.n, line.epoch + (1 if line.end is None else line.end / line.n)
        cell = _Cell(row, _rounded(begin), _rounded(end), state_of(line, doubts), line.lost, line.duplicated)
        if many and cells and (cells[-1].end, cells[-1].state) == (cell.begin, cell.state):
            cell = _joined(cells.pop(), cell)
        cells.append(cell)
    return cells


def _with_one_that_is_wrong(cells: list[_Cell]) -> Iterator[_Cell]:
    wrong = [cell for cell in cells if cell.state == WRONG]
    if not wrong:
        yield from cells
        return
    begin, end = wrong[0].begin, wrong[-1].end
    yield from (cell for cell in cells if cell.end <= begin or cell.begin >= end)
    joined = wrong[0]
    for cell in wrong[1:]:
        joined = _joined(joined, cell)
    yield joined


def _joined(one: _Cell, other: _Cell) -> _Cell:
    lost, duplicated = _sum(one.lost, other.lost), _sum(one.duplicated, other.duplicated)
    return replace(one, end=other.end, lost=lost, duplicated=duplicated)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _rounded(value: float) -> float:
    return round(value, 7)
