"""Markup out of text, which is escaped: names and causes come from logs, and so from anybody."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_VOID = ("meta",)


class Html(str):
    """Markup. Any other text is escaped where it is put into markup."""

    __slots__ = ()


def element(kind: str, /, *children: object, **attributes: str | bool | None) -> Html:
    """The element; an attribute that is None or False is left out, and `_` in its name is a hyphen."""
    shown = "".join(_attribute(key.strip("_").replace("_", "-"), value) for key, value in attributes.items())
    if kind in _VOID:
        return Html(f"<{kind}{shown}>")
    return Html(f"<{kind}{shown}>{join(children)}</{kind}>")


def join(children: Iterable[object]) -> Html:
    """All of them, one after the other; None is left out."""
    shown = (child for child in children if child is not None)
    return Html("".join(child if isinstance(child, Html) else escape(str(child)) for child in shown))


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(value)}"'


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> Html:
    """A table that scrolls by itself where it is too wide; the columns in `numbers` are aligned as numbers."""
    kinds = ["number" if name in numbers else None for name in header]
    titles = (element("th", name, scope="col", class_=kind) for name, kind in zip(header, kinds, strict=True))
    head = element("tr", *titles)
    body = join(
        element("tr", *(element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)))
        for row in rows
    )
    whole = element("table", element("caption", caption), element("thead", head), element("tbody", body))
    return element("div", whole, class_="scrolls", tabindex="0", role="region", aria_label=caption)


def details(summary: str, *children: object) -> Html:
    """What is shown on request."""
    return element("details", element("summary", summary), *children)


def data(name: str, value: Any) -> Html:
    """Values for the page's own script: JSON that cannot end the element around it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{escape(name)}">{text}</script>')
