"""The timeline: one row for each pod, with the parts of its life and the ends of it."""

from torchtally.page import life_parts
from torchtally.page.chart import Chart, Row, Spec, coloured, zoom
from torchtally.page.life_parts import Lived
from torchtally.record.sentences import date, duration
from torchtally.verifier.phrasing import counted

_COLOURS = {
    life_parts.SCHEDULES: "@schedules",
    life_parts.STARTS: "@starts",
    life_parts.IMPORTS: "@imports",
    life_parts.WAITS: "@waits",
    life_parts.PREPARES: "@prepares",
    life_parts.LOADS: "@loads",
    life_parts.TRAINS: "@trains",
    life_parts.SAVES: "@saves",
}
_SHAPES = {
    life_parts.SUCCEEDED: "circle",
    life_parts.FAILED: "cross",
    life_parts.FOLLOWED: "triangle-down",
    life_parts.STOPPED: "square",
    life_parts.SILENT: "diamond",
}
_ENDS = {
    life_parts.SUCCEEDED: "@good",
    life_parts.FAILED: "@bad",
    life_parts.FOLLOWED: "@restart",
    life_parts.STOPPED: "@restart",
    life_parts.SILENT: "@bad",
}
_NAMED = 40  # pods; the names of more do not fit beside their rows
_UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))


def chart(found: list[Lived]) -> Chart:
    """The timeline of these lives, of which there is at least one."""
    begin = min(part.begin for life in found for part in (*life.parts, life_parts.Part(life.began, life.over, "")))
    end = max(life.over for life in found)
    unit, seconds = next((unit for unit in _UNITS if end - begin > 3 * unit[1]), _UNITS[-1])
    pods = [*dict.fromkeys(life.pod for life in found)]
    place = {pod: number for number, pod in enumerate(pods)}
    few = len(pods) <= _NAMED

    def since(moment: float) -> float:
        return round((moment - begin) / seconds, 4)

    parts: list[Row] = [
        {
            "place": place[life.pod],
            "begin": since(part.begin),
            "end": since(part.end),
            "state": part.state,
        }
        for life in found
        for part in life.parts
    ]
    causes: dict[str, int] = {}  # many pods have the same
    ends: list[Row] = [
        {
            "place": place[life.pod],
            "moment": since(life.over),
            "how": life.how,
            "code": life.code,
            "why": causes.setdefault(life.cause or "", len(causes)),
        }
        for life in found
        if life.how
    ]
    named: Spec = {"calculate": "names[datum.place]", "as": "pod"}
    half = 0.36 if few else 0.5
    edge = f"(datum.state == '{life_parts.SAVES}' ? {half / 2} : {half})"
    x = {
        "field": "begin",
        "type": "quantitative",
        "title": f"{unit} since {date(begin)}",
        "scale": {"domain": [0, max(1.01 * since(end), 0.001)], "nice": False},
    }
    axis: Spec = {
        "grid": False,
        "tickMinStep": 1,
        "labelLimit": 150,
        "ticks": False,
        "domain": False,
        "labelOverlap": False,
    }
    if few:
        axis |= {"values": [*range(len(pods))], "labelExpr": "names[datum.value]"}
    y = {
        "field": "top",
        "type": "quantitative",
        "title": None if few else "pods, by number",
        "scale": {"domain": [-0.5, len(pods) - 0.5], "reverse": True, "nice": False, "zero": False},
        "axis": axis,
    }
    bars = {
        "data": {"name": "parts"},
        "transform": [
            {"calculate": f"datum.place - {edge}", "as": "top"},
            {"calculate": f"datum.place + {edge}", "as": "bottom"},
            named,
            {"calculate": "datum.pod + ': ' + datum.state", "as": "said"},
        ],
        "params": zoom("x") if few else zoom("x", "y"),
        "mark": {"type": "rect", "clip": True},
        "encoding": {
            "x": x,
            "x2": {"field": "end"},
            "y": y,
            "y2": {"field": "bottom"},
            "color": coloured("state", _COLOURS, {row["state"] for row in parts}),
            "description": {"field": "said"},
            "tooltip": [
                {"field": "pod"},
                {"field": "state", "title": "what"},
                {"field": "begin", "title": f"from, in {unit}"},
                {"field": "end", "title": f"to, in {unit}"},
            ],
        },
    }
    kinds = {row["how"] for row in ends}
    shape = coloured("how", _SHAPES, kinds)
    shape["legend"] = {"title": None, "orient": "bottom"}
    colour = {**coloured("how", _ENDS, kinds), "legend": shape["legend"]}
    marks = {
        "data": {"name": "ends"},
        "transform": [
            named,
            {"calculate": "causes[datum.why]", "as": "cause"},
            {"calculate": "datum.pod + ': ' + datum.how", "as": "said"},
        ],
        "mark": {"type": "point", "filled": True, "size": 90 if few else 25, "opacity": 1, "stroke": "@background"},
        "encoding": {
            "x": {"field": "moment", "type": "quantitative"},
            "y": {"field": "place", "type": "quantitative", "title": y["title"], "axis": axis},
            "shape": shape,
            "color": colour,
            "description": {"field": "said"},
            "tooltip": [
                {"field": "pod"},
                {"field": "how", "title": "how it ended"},
                {"field": "moment", "title": f"after, in {unit}"},
                {"field": "code", "title": "exit code"},
                {"field": "cause"},
            ],
        },
    }
    spec = {
        "params": [{"name": "names", "value": pods}, {"name": "causes", "value": [*causes]}],
        "layer": [bars, *([marks] if ends else [])],
        "resolve": {"scale": {"color": "independent", "shape": "independent"}},
    }
    return Chart(
        name="timeline",
        label=f"Timeline of {counted(len(pods), 'pod')} over {duration(end - begin)}.",
        height=min(max(26 * len(pods), 80), 560),
        spec=spec,
        rows={"parts": parts, "ends": ends},
        zooms=True,
    )
