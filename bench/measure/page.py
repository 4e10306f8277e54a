"""How long the page of a large run takes to open in Chromium: a Markdown table.

python -m bench.measure.page [ROUNDS]

Seconds count from the navigation to the page's file. A chart is there when a frame shows it and the page would answer a
click. CPU time is that of the page's own process until all charts are there, which other programs disturb least.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from bench import machine
from bench.markdown import markdown, number, shown
from bench.spread import spread
from torchtally.page import document

sys.path += [str(Path(__file__).parents[2] / "tests" / name) for name in ("page", "scripts")]

import large  # type: ignore[import-not-found]

SIZES = ((4, 10), (100, 100), (1000, 100))  # pods and epochs
_WATCH = """
const selectors = {map: "#map-0[data-drawn]", charts: "html[data-drawn]"};
const seen = {};
new MutationObserver(() => {
  for (const name of Object.keys(selectors)) {
    if (!document.querySelector(selectors[name])) continue;
    delete selectors[name];
    requestAnimationFrame(() => setTimeout(() => {
      seen[name] = performance.now();
      if (name !== "charts") return;
      seen.text = performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? seen.map;
      console.log(JSON.stringify(seen));
    }));
  }
}).observe(document, {attributes: true, subtree: true});
"""


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        print("\n".join(table(browser, Path(folder), rounds)))
        browser.close()


def table(browser: Browser, folder: Path, rounds: int) -> Iterator[str]:
    """The lines of the table. The sizes take turns, because a slow phase of the machine affects all."""
    files = {size: folder / f"{size[0]}.html" for size in SIZES}
    for size, file in files.items():
        snapshot, verdict = large.run(*size)
        document.write(snapshot, verdict, file)
    found: dict[tuple[int, int], list[tuple[float, ...]]] = {size: [] for size in SIZES}
    for _ in range(rounds):
        for size, file in files.items():
            found[size].append(opened(browser, file))
    rows = [
        [
            *map(str, size),
            number(file.stat().st_size / 1e6),
            *(shown(spread(values)) for values in zip(*found[size], strict=True)),
        ]
        for size, file in files.items()
    ]
    header = ["pods", "epochs", "MB", "text, s", "shard map, s", "all charts, s", "CPU time, s"]
    yield from markdown(header, rows, left=())
    yield ""
    about = f"Chromium {browser.version}. {machine.sentence('playwright')}"
    yield f"Medians of n = {rounds} rounds, with the minimum and the maximum in brackets. {about}"


def opened(browser: Browser, file: Path) -> tuple[float, ...]:
    """Seconds until the text, the shard map, and all charts are there, and of CPU time."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.add_init_script(_WATCH)
        session = context.new_cdp_session(page)
        session.send("Performance.enable")
        with page.expect_console_message() as message:
            page.goto(file.as_uri(), wait_until="commit")
        seen = json.loads(message.value.text)
        used = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        return *(seen[name] / 1000 for name in ("text", "map", "charts")), used["ProcessTime"]


if __name__ == "__main__":
    main()
