"""Loss, accuracy, and throughput over the epochs."""

from collections.abc import Sequence
from math import ceil

from torchtally.page.chart import Chart, Row, Spec, restarts
from torchtally.record.model import Epoch, Progress

_REPORT, _TRAINING, _TEST = "training, one step", "training, whole epoch", "test"
_SERIES = [_REPORT, _TRAINING, _TEST]
_COLOURS = ["@third", "@first", "@second"]
_DASHES = [[1, 0], [1, 0], [6, 3]]
_SHAPES = ["circle", "circle", "square"]
_ACCURACY, _SPEED = "test accuracy", "samples a second"


def charts(epochs: Sequence[Epoch], reports: Sequence[Progress], began_again: list[Row]) -> list[Chart]:
    """One chart of each number that is reported."""
    loss: list[Row] = [_row(_REPORT, _reached(each), each.loss) for each in reports]
    loss += [_row(_TRAINING, each.epoch, each.loss) for each in epochs]
    loss += [_row(_TEST, each.epoch, each.test_loss) for each in epochs]
    accuracy = [_row(_TEST, each.epoch, each.test_accuracy) for each in epochs]
    speed = [_row(_REPORT, _reached(each), each.samples_per_second) for each in reports]
    speed += [_row(_TRAINING, each.epoch, each.samples_per_second) for each in epochs]
    found = {"loss": loss, _ACCURACY: accuracy, _SPEED: speed}
    known = {name: [row for row in rows if row["value"] is not None] for name, rows in found.items()}
    return [_chart(name, rows, began_again) for name, rows in known.items() if rows]


def _reached(report: Progress) -> float:
    return round(report.epoch - 1 + report.step / max(report.steps, 1), 5)


def _row(series: str, epoch: float, value: float | None) -> Row:
    return {"series": series, "epoch": epoch, "value": value}


def _chart(name: str, rows: list[Row], began_again: list[Row]) -> Chart:
    present = [series for series in _SERIES if any(row["series"] == series for row in rows)]
    values: list[float] = [row["value"] for row in rows]
    first, last = min(row["epoch"] for row in rows), max(row["epoch"] for row in rows)
    if began_again:  # a restart in the first epoch is before its end
        first = min(first, *(row["where"] - 1 for row in began_again))
    domain = [first, last] if first < last else [first - 0.5, last + 0.5]
    few = domain[1] - domain[0] <= 8  # where Vega would also mark halves
    ticks: Spec = {"values": [*range(ceil(domain[0]), int(domain[1]) + 1)]} if few else {"tickCount": 6}
    form, exact = "~s", ",.0f"
    if name == _ACCURACY:
        form, exact = ".0%" if max(values) - min(values) > 0.05 else ".1%", ".2%"
    elif name == "loss":
        form, exact = ",.3~r", ".4f"

    def scale(field: str, among: Sequence[object]) -> Spec:
        chosen = [among[_SERIES.index(series)] for series in present]
        legend = {"title": None, "orient": "bottom", "columns": 1} if len(present) > 1 else None
        return {"field": field, "type": "nominal", "scale": {"domain": present, "range": chosen}, "legend": legend}

    encoding: Spec = {
        "x": {
            "field": "epoch",
            "type": "quantitative",
            "title": "epochs trained",
            "scale": {"domain": domain, "nice": False, "zero": False},
            "axis": {"grid": False, "format": ",~r", **ticks},
        },
        "y": {
            "field": "value",
            "type": "quantitative",
            "title": name,
            "scale": {"zero": name == _SPEED},
            "axis": {"format": form, "tickCount": 5},
        },
        "color": scale("series", _COLOURS),
        "tooltip": [
            {"field": "series"},
            {"field": "epoch", "title": "epochs trained", "format": ",~r"},
            {"field": "value", "title": name, "format": exact},
        ],
    }
    point = {"type": "point", "filled": True, "size": 36 if len(rows) <= 80 else 12}
    layers: list[Spec] = [
        {
            "data": {"name": "values"},
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {**encoding, "strokeDash": scale("series", _DASHES)},
        },
        {
            "data": {"name": "values"},
            "mark": point,
            "encoding": {**encoding, "shape": scale("series", _SHAPES)},
        },
    ]
    if began_again:
        layers.append(restarts("trained"))
    marked: list[Row] = [{**row, "trained": row["where"] - 1} for row in began_again]
    return Chart(
        name=f"curve-{name.replace(' ', '-')}",
        label=f"Curve of {name} over {last:g} epoch{'s' * (last != 1)}, from {values[0]:.4g} to {values[-1]:.4g}.",
        height=190,
        spec={"layer": layers},
        rows={"values": rows, "restarts": marked},
    )
