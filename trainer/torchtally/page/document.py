"""The page itself: one file that makes no request."""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from torchtally import atomic_file
from torchtally.page import summary, tables
from torchtally.page.chart import Chart
from torchtally.page.content import Content
from torchtally.page.markup import Html, data, details, element
from torchtally.record.model import Snapshot
from torchtally.verifier.verdict import Verdict

_ZOOM = "Drag to move. The buttons zoom, as does the wheel while Ctrl is held."


def write(
    snapshot: Snapshot, verdict: Verdict, path: Path, options: Mapping[str, Any] | None = None, *, alone: bool = False
) -> None:
    """Write the page of the run that the verdict is about, in place of one that is there. Raises OSError.

    Args:
        snapshot: What happened in the job.
        verdict: What the verifier says of the run.
        path: The file.
        options: The options of the run, as far as they are known.
        alone: Whether rank 0 tells what it knows, and the logs of all pods were not read.
    """
    atomic_file.replace(path, render(snapshot, verdict, options or {}, alone=alone).encode())


def render(snapshot: Snapshot, verdict: Verdict, options: Mapping[str, Any], *, alone: bool = False) -> str:
    """The page as HTML."""
    content = Content.of(snapshot, verdict, options, alone=alone)
    style, library, script = (_packaged(name) for name in ("page.css", "vega.js", "page.js"))
    policy = (
        f"default-src 'none'; script-src {_hash(library)} {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{content.mark} {content.task} – torchtally"),
        element("style", Html(style)),
    )
    body = element(
        "body",
        element("main", *_sections(content)),
        data("charts", [chart.values for chart in content.charts]),
        element("script", Html(library)),
        element("script", Html(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _sections(content: Content) -> Iterator[Html]:
    yield from summary.header(content)
    yield from _map(content)
    yield from _curves(content)
    yield from _timeline(content)
    yield from tables.stragglers(content)
    yield from tables.restarts(content)
    yield from tables.checkpoints(content)
    yield from tables.setting(content)
    yield from tables.verification(content)


def _map(content: Content) -> Iterator[Html]:
    yield element("h2", "Shard map")
    if not content.maps:
        yield element("p", "These logs have no tally line, so nothing is known of the samples.")
        return
    yield element(
        "p",
        "Each row is a rank, and each column an epoch. Within a column, samples follow each other in the order of the "
        "epoch: a mark is where a sample was lost or doubled. The row “all” compares all ranks together with the "
        "contract.",
    )
    for phase, chart in content.maps.items():
        yield _figure(chart, f"Phase {phase}. {_ZOOM}", tables.proofs(content, phase))
    yield from tables.wrong(content)


def _curves(content: Content) -> Iterator[Html]:
    yield element("h2", "Loss, accuracy, and throughput")
    if not content.curves:
        yield element("p", "These logs report neither loss, nor accuracy, nor throughput.")
        return
    if content.restarts:
        yield element("p", "A dashed line marks a restart.")
    yield element("div", *(element("figure", chart.place) for chart in content.curves), class_="curves")
    if content.epochs:
        yield tables.epochs(content)


def _timeline(content: Content) -> Iterator[Html]:
    yield element("h2", "Timeline")
    if content.alone:
        yield element(
            "p",
            "Rank 0 wrote this page at the end of the run, and knows its own events since its last start. A page that "
            "is made from the logs of all pods shows each of them, with their ends and the causes.",
        )
    if content.timeline:
        yield _figure(content.timeline, f"Each row is a pod. {_ZOOM}", tables.pods(content))
    elif content.lives:
        yield tables.pods(content)
    elif not content.alone:
        yield element("p", "These logs have no event, so nothing is known of the lives of the pods.")


def _figure(chart: Chart, caption: str, table: Html) -> Html:
    """A chart with its caption, and the same numbers as a table."""
    return element("figure", element("figcaption", caption), chart.place, details("As a table", table))


@cache
def _packaged(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a policy names this text as the only one that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
