"""Pages of the lines of logs, and what a browser makes of them."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import bruteforce
from bruteforce import Line
from playwright.sync_api import Browser, Page

from torchtally import events
from torchtally.page import document
from torchtally.record.record import Record
from torchtally.verifier.verdict import Verdict, judge

BEGAN = bruteforce.BEGAN / 1000
VERSIONS = {"torchtally": "0.1.0", "torch": "2.14.1", "python": "3.13.1"}


def write(logs: Mapping[str, str], path: Path) -> Verdict:
    """The page of a run whose pods have these logs."""
    record = Record()
    for pod, text in logs.items():
        record.read(pod, io.StringIO(text, newline=""))
    [verdict] = judge(record)
    document.write(record.snapshot, verdict, path)
    return verdict


def of_lines(lines: list[Line], reported: str = "") -> dict[str, str]:
    """The logs of pods that print these lines; rank 0's has these events, too."""
    logs: dict[str, list[Line]] = {}
    for line in lines:
        logs.setdefault(line["pod"], []).append(line)
    return {pod: reported * (pod == "demo-master-0") + bruteforce.text(own) for pod, own in logs.items()}


def event(
    seconds: float, event: events.Event, pod: str = "demo-master-0", rank: int | None = 0, attempt: int = 0
) -> str:
    source = events.Source(pod=pod, rank=rank, run=None if rank is None else bruteforce.RUN, attempt=attempt)
    return events.line(events.Record(BEGAN + seconds, source, event)) + "\n"


@contextmanager
def opened(browser: Browser, path: Path, **options: object) -> Iterator[Page]:
    """The page as the browser draws it; it makes no request but for itself, and reports no error."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    page.set_default_timeout(120_000)
    requested: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    yield page
    assert requested == [path.as_uri()]
    assert said == []
    context.close()


def rows(page: Page, caption: str) -> list[list[str]]:
    """The cells of a table, shown or not."""
    found: list[list[str]] = page.evaluate(
        """caption => [...[...document.querySelectorAll("table")]
            .find((table) => table.caption.textContent === caption).tBodies[0].rows]
            .map((row) => [...row.cells].map((cell) => cell.textContent))""",
        caption,
    )
    return found
