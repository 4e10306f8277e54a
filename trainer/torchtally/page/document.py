"""The page itself: one file that makes no request."""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from itertools import chain
from pathlib import Path

from torchtally import atomic_file
from torchtally.observed.judge import Observation
from torchtally.page import observed, shard_map, summary, tables, timeline
from torchtally.page.chart import HOW_TO_ZOOM, Chart
from torchtally.page.content import Content
from torchtally.page.life_parts import Lived, lived
from torchtally.page.markup import Html, data, details, element
from torchtally.record.model import Snapshot
from torchtally.verifier.observation import outcome_of
from torchtally.verifier.outcome import Outcome
from torchtally.verifier.verdict import Verdict


def write(snapshot: Snapshot, verdict: Verdict, path: Path) -> None:
    """Write the page of the run that the verdict is about, in place of one that is there. Raises OSError."""
    content = Content.of(snapshot, verdict)
    maps = observed.maps(snapshot.observation) if snapshot.observation else []
    sections = chain(_sections(content), _observed(snapshot.observation, maps))
    page = _page(f"{content.mark} {content.task}", sections, [*content.charts, *maps])
    atomic_file.replace(path, page.encode())


def write_observed(snapshot: Snapshot, outcome: Outcome, path: Path) -> None:
    """Write the page of a program that keeps no account, and what its observation comes to. Raises OSError."""
    observation = snapshot.observation
    assert observation
    maps, lives = observed.maps(observation), lived(snapshot, None)
    times = timeline.chart(lives) if any(life.parts for life in lives) else None

    def sections() -> Iterator[Html]:
        yield from observed.header(observation, outcome)
        yield element("h2", "Shard map by ranks")
        yield from observed.shards(observation, maps)
        if lives:
            yield element("h2", "Timeline")
            yield _lives(times, lives)
        yield from tables.versions(snapshot)
        yield from observed.method()

    title = f"{observed.mark(observation, outcome)} {observed.TITLE}".lstrip()
    page = _page(title, sections(), [*maps, *([times] if times else [])])
    atomic_file.replace(path, page.encode())


def _page(title: str, sections: Iterable[Html], charts: Sequence[Chart]) -> str:
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
        element("title", f"{title} – torchtally"),
        element("style", Html(style)),
    )
    body = element(
        "body",
        element("main", *sections),
        data("charts", [chart.values for chart in charts]),
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


def _observed(observation: Observation | None, maps: Sequence[Chart]) -> Iterator[Html]:
    if observation:
        yield element("h2", "Observed")
        yield element("p", "The program also has loaders that no account keeps.")
        yield observed.box(observation, outcome_of(observation, None))
        yield from observed.shards(observation, maps)
        yield from observed.method()


def _map(content: Content) -> Iterator[Html]:
    yield element("h2", "Shard map")
    if not content.maps:
        yield element("p", "These logs have no tally line, so nothing is known of the samples.")
        return
    yield element(
        "p",
        "Each row is a rank, and each column an epoch. Within a column, samples follow each other in the order of the "
        "epoch: a mark is where a sample was lost or duplicated. The row “all” compares all ranks together with the "
        "contract.",
    )
    for phase, chart in content.maps.items():
        figure = _figure(chart, f"Phase {phase}. ", tables.proofs(content, phase))
        planned = content.verdict.outcome is Outcome.PROVED and shard_map.is_planned(chart)
        yield details(f"Phase {phase}: all samples as planned", figure) if planned else figure
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
    if content.lives:
        yield _lives(content.timeline, content.lives)
    else:
        yield element("p", "These logs have no event, so nothing is known of the lives of the pods.")


def _lives(chart: Chart | None, lives: Sequence[Lived]) -> Html:
    pods = tables.pods(lives)
    return _figure(chart, "Each row is a pod. ", pods) if chart else pods


def _figure(chart: Chart, caption: str, table: Html) -> Html:
    """A chart that zooms, with its caption, and the same numbers as a table."""
    return element("figure", element("figcaption", caption, *HOW_TO_ZOOM), chart.place, details("As a table", table))


@cache
def _packaged(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a policy names this text as the only one that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
