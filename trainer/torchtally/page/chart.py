"""A chart as Vega-Lite draws it: a specification that is written here, and rows that come from logs.

A colour that begins with `@` is a variable of page.css, which has its values for light and dark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchtally.page.markup import Html, element

Row = Mapping[str, Any]
Spec = dict[str, Any]

HOW_TO_ZOOM = (
    "Drag to move. The buttons zoom",
    element("span", ", as does the wheel while Ctrl is held", class_="wheel"),  # which a phone lacks
    ".",
)


@dataclass(frozen=True, kw_only=True)
class Chart:
    name: str  # of the element that holds it
    label: str  # what a screen reader says
    height: int  # pixels
    spec: Spec
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)  # by dataset
    zooms: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """What page.js needs. The rows are in columns, which take a third of the room."""
        full = {name: rows for name, rows in self.rows.items() if rows}
        columns = {name: {key: [row[key] for row in rows] for key in rows[0]} for name, rows in full.items()}
        spec = {"width": "container", "height": self.height, "description": self.label, **self.spec}
        empty = [name for name in self.rows if name not in full]
        return {"name": self.name, "spec": spec, "columns": columns, "empty": empty, "zooms": self.zooms}

    @property
    def place(self) -> Html:
        """The element that it is drawn in."""
        return element("div", class_="chart", id=self.name)


def zoom(*encodings: str) -> list[Spec]:
    """Parameters that let a reader move and zoom; a wheel alone scrolls the page."""
    select = {
        "type": "interval",
        "encodings": list(encodings),
        "zoom": "wheel![event.ctrlKey || event.metaKey]",
    }
    return [{"name": "zoom", "select": select, "bind": "scales"}]


def coloured(field: str, colours: Mapping[str, str], present: set[str]) -> Spec:
    """The colours of the kinds that are `present`, with a legend above the chart."""
    kinds = [kind for kind in colours if kind in present]
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": kinds, "range": [colours[kind] for kind in kinds]},
        "legend": {"title": None, "orient": "top", "symbolType": "square"},
    }


def restarts(field: str) -> Spec:
    """A layer with a line at each restart."""
    tip = [{"field": "restart"}, {"field": "attempt"}, {"field": "position", "title": "resumes at"}, {"field": "cause"}]
    return {
        "data": {"name": "restarts"},
        "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5, "color": "@restart", "clip": True},
        "encoding": {"x": {"field": field, "type": "quantitative"}, "tooltip": tip},
    }
