"""The page says what the logs say, in a browser, and nothing that is in a log can do more than be read."""

import json
import re
from pathlib import Path

import bruteforce
import large
import pages
import pytest
import seen
from playwright.sync_api import Browser

from torchtally import events
from torchtally.page import document
from torchtally.record.record import Record
from torchtally.verifier.observation import outcome_of
from torchtally.verifier.outcome import Outcome

pytestmark = pytest.mark.browser
EVIL = "</script><img src=x onerror=alert(1)><b>&amp;\"'${1+1}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a page is written."""
    return tmp_path / "report.html"


def epoch(number: int, loss: float, accuracy: float, speed: float) -> events.Epoch:
    return events.Epoch(
        epoch=number, loss=loss, test_loss=loss + 1, test_accuracy=accuracy, tested=10, samples_per_second=speed
    )


def repeats(phase: str, number: int, rank: int, shard: list[int]) -> list[int]:
    """Rank 2 loses a sample of its shard in the second epoch, and takes the first one twice."""
    return [shard[0], *shard[:5], *shard[6:]] if (phase, number, rank) == ("train", 2, 2) else shard


def test_a_proved_run(browser: Browser, path: Path) -> None:
    lines = bruteforce.run()
    told = pages.event(1, events.Begun(task="fashion-mnist", world=4)) + pages.event(2, events.Step(epoch=1))
    told += pages.event(5, epoch(1, 0.5, 0.7, 1234)) + pages.event(9, epoch(2, 0.25, 0.8, 4321))
    saved = events.Saved(path="/output/checkpoints/a.checkpoint", epoch=2, position=20, seconds=0.5)
    told += pages.event(8, saved)
    slow = events.Straggler(slow="demo-worker-0", slow_rank=1, loses_in="compute", seconds=0.25, others=0.1)
    none = events.Straggler(slow=None, slow_rank=None, loses_in=None, seconds=None, others=None)
    told += pages.event(6, slow) + pages.event(7, none)
    verdict = pages.write(pages.of_lines([*lines, bruteforce.last(lines)], told), path)
    assert verdict.outcome is Outcome.PROVED
    with pages.opened(browser, path) as page:
        assert page.title() == "✓ fashion-mnist – torchtally"
        assert "✓ Proved" in page.inner_text(".verdict")
        assert bruteforce.MODEL in page.inner_text(".verdict")
        table = pages.rows(page, "Samples of the phase train")
        assert [row[2:7] for row in table[:5]] == [
            *([str(rank), "15", "15", "0", "0"] for rank in range(4)),
            ["4", "60", "60", "0", "0"],
        ]
        assert table[4][-1] == "✓ every sample exactly once"
        assert pages.rows(page, "Results of the epochs") == [
            ["1", "0.5000", "1.5000", "70.00%", "1,234"],
            ["2", "0.2500", "1.2500", "80.00%", "4,321"],
        ]
        assert pages.rows(page, "Checkpoints, times in UTC") == [["03:04:13", "2", "20", "0.500", "a.checkpoint"]]
        assert pages.rows(page, "Slow pods, times in UTC") == [
            ["03:04:11", "demo-worker-0", "1", "its steps compute for 0.25 s (the others: 0.1 s)"],
            ["03:04:12", "none", "", "no pod is slower than the other pods any more"],
        ]
        # Maps that are as planned are folded, and drawn once they are opened.
        assert page.locator("#map-0[data-drawn]").count() == 0
        for phase in ("train", "test"):
            page.get_by_text(f"Phase {phase}: all samples as planned").click()
        page.wait_for_selector("#map-0[data-drawn]")
        page.wait_for_selector("#map-1[data-drawn]")
        charts = page.locator(".chart[aria-label]")
        assert charts.count() == len(json.loads(page.locator("#charts").inner_text())) == 6
        assert "lost or duplicated" not in page.locator("#map-0").inner_text()
        assert page.locator("#map-0 .role-axis-grid").count() == 0
        # Each chart names itself, and a table has its numbers.
        for label in charts.evaluate_all("all => all.map((each) => each.getAttribute('aria-label'))"):
            assert re.match(r"(Shard map|Curve|Timeline) of ", label)


def test_a_disproved_run_shows_which_samples(browser: Browser, path: Path) -> None:
    lines = bruteforce.run(consume=repeats)
    assert pages.write(pages.of_lines([*lines, bruteforce.last(lines)]), path).outcome is Outcome.DISPROVED
    order = bruteforce.order(60, 0, 2)
    with pages.opened(browser, path) as page:
        assert page.title().startswith("✗ ")
        assert "✗ Disproved" in page.inner_text(".verdict")
        found = pages.rows(page, "Lost and duplicated samples")
        lost, duplicated = (str(position) for position in (2 + 4 * 5, 2))
        for rank in ("2", "all"):
            assert ["train", "2", rank, "1 sample lost", lost, str(order[int(lost)])] in found
            assert ["train", "2", rank, "1 sample duplicated", duplicated, str(order[int(duplicated)])] in found
        assert len(found) == 4
        marks = "[aria-label='1 sample lost']"
        assert page.locator(f"#map-0 {marks}").count() >= 2
        page.locator("#map-0").hover()
        # The buttons zoom: half of the epochs is shown, then all.
        ticks = "[...document.querySelectorAll('#map-0 .role-axis-label text')].map((each) => each.outerHTML).sort()"
        before = page.evaluate(ticks)
        page.get_by_role("button", name="Zoom in").first.click()
        assert page.evaluate(ticks) != before
        page.get_by_role("button", name="Show all").first.click()
        assert page.evaluate(ticks) == before


def test_restarts_are_where_the_training_has_gone_on(browser: Browser, path: Path) -> None:
    """Once anew, and once within an epoch of 60 samples; those of the phase before it have 10."""
    worlds = [(1, 0, 4), (2, 20, 3)]
    lines = bruteforce.run(plan={"test": 2, "train": 2}, worlds=worlds)
    begun = events.Begun(task="fashion-mnist", world=4)
    resumed = events.Resumed(
        task="fashion-mnist", world=3, checkpoint="/output/a.checkpoint", epoch=2, position=20, discarded=0
    )
    told = pages.event(-5, begun) + pages.event(1, begun) + pages.event(6, resumed, attempt=1)
    verdict = pages.write(pages.of_lines([*lines, bruteforce.last(lines, worlds)], told), path)
    assert verdict.outcome is Outcome.PROVED
    with pages.opened(browser, path) as page:
        assert [row[:6] for row in pages.rows(page, "Restarts, times in UTC")] == [
            ["1", "03:04:06", "1", "0", "4", "none: it began anew"],
            ["2", "03:04:11", "2", "20", "3", "a.checkpoint"],
        ]
        charts = json.loads(page.locator("#charts").inner_text())
        marked = [chart["columns"]["restarts"] for chart in charts if "restarts" in chart["columns"]]
        assert [each["where"] for each in marked] == [[1, 2 + 20 / 60]] * 2


def observed(path: Path, lines: list[str]) -> Path:
    """The page of these lines of a program that keeps no account."""
    record = Record()
    for line in lines:
        record.add_line(*line.removeprefix("[").split("] ", 1))
    observation = record.snapshot.observation
    assert observation
    document.write_observed(record.snapshot, outcome_of(observation, None), path)
    return path


def test_an_observed_program(browser: Browser, path: Path) -> None:
    with pages.opened(browser, observed(path, seen.lines())) as page:
        assert page.title() == "✓ Observed training – torchtally"
        assert "an observation, not a proof" in page.inner_text(".verdict")
        label = "Shard map of train.py:18 (Digits, 40 samples): 2 ranks over 2 passes."
        assert [row[2:] for row in pages.rows(page, label)] == [
            ["demo-master-0", "0", "40", "20", "", "", ""],
            ["demo-worker-0", "1", "40", "20", "", "", ""],
            ["all", "2", "40", "40", "0", "0", "✓ each sample handed out exactly once"],
        ]
        assert page.locator("#observed-0 .role-axis-label").first.locator("text").all_text_contents() == ["1", "2"]
        said = "rank 1, pass 2: as expected"
        cell = page.locator(f"#observed-0 [aria-label='{said}']")
        cell.hover()
        tip = page.inner_text("#vg-tooltip-element").split()
        assert " ".join(tip) == (
            "who rank 1 pass 2 samples as expected handed out 20 lost by all ranks 0 of 40 samples "
            "duplicated by all ranks 0 of 40 samples"
        )


def test_a_fault_and_a_rank_without_a_line(browser: Browser, path: Path) -> None:
    lines = [*seen.lines(seen.ALL), *seen.lines(([1, 2], []), passes=1, steps=0, loader=OTHER)[:1]]
    with pages.opened(browser, observed(path, lines)) as page:
        assert page.title().startswith("✗ ")
        assert "each rank is handed all 40 samples" in page.inner_text(".verdict li")
        for who in ("all ranks together", "rank 0", "rank 1"):
            assert page.locator(f"#observed-0 [aria-label='{who}, pass 1: fault']").count() == 1
        assert page.locator("#observed-1 [aria-label='rank 1, pass 1: no line in these logs']").count() == 1
        assert page.locator("#observed-1 [aria-label$=': fault']").count() == 0


OTHER = {"place": "train.py:31", "type": "DataLoader", "dataset": EVIL, "length": 40, "batch": 5, "workers": 0}


def test_text_of_an_observed_line_stays_text(browser: Browser, path: Path) -> None:
    lines = seen.lines(passes=1, loader=OTHER, pod=EVIL)
    with pages.opened(browser, observed(path, lines)) as page:
        assert EVIL in page.inner_text("figcaption")
        page.locator("#observed-0 [aria-label^='rank 0']").hover()
        assert page.locator("img, main b").count() == 0


def test_many_ranks_and_passes_fit_in_2_mb(browser: Browser, path: Path) -> None:
    observation = Record()
    for rank in range(300):
        for number in range(50):
            line = seen.line(0, [rank % 40], number, world=300, **{"rank": rank, "pod": f"pod-{rank}"})
            observation.add_line("pod", line)
    document.write_observed(observation.snapshot, Outcome.OBSERVED, path)
    assert path.stat().st_size < 2_000_000
    with pages.opened(browser, path) as page:
        # Passes that are alike are one cell of each rank.
        assert page.locator("#observed-0").get_attribute("data-drawn") == "301"


@pytest.mark.parametrize("missing", ["last line", "rank"])
def test_no_check_mark_where_the_verifier_has_none(path: Path, missing: str) -> None:
    lines = bruteforce.run()
    kept = [line for line in lines if line["rank"] != 1] if missing == "rank" else lines[:-1]
    assert pages.write(pages.of_lines(kept), path).outcome is Outcome.INCOMPLETE
    text = path.read_text().partition('id="charts"')[0]
    assert "<strong>… Incomplete</strong>" in text
    assert "✓" not in text.partition("<main>")[2].partition("<h2>")[0]


def test_text_of_a_log_stays_text(browser: Browser, path: Path) -> None:
    lines = [line | {"pod": line["pod"] + EVIL} for line in bruteforce.run(task=EVIL)]
    pod = lines[0]["pod"]
    told = pages.event(1, events.Begun(task=EVIL, world=4), pod) + pages.event(2, events.Step(epoch=1), pod)
    told += pages.event(3, epoch(1, 0.5, 0.7, 1), pod)
    versions = {**pages.VERSIONS, "torch": EVIL}
    started = events.Started(node_rank=0, min_pods=4, max_pods=4, processes=1, threads=1, **versions)
    ended = events.Ended(code=1, kind="known", cause=EVIL)
    told = pages.event(0, started, pod, None) + told + pages.event(9, ended, pod, None)
    logs = pages.of_lines(lines)
    pages.write({**logs, pod: told + logs[pod]}, path)
    with pages.opened(browser, path) as page:
        assert page.inner_text("h1") == EVIL
        assert EVIL in str(pages.rows(page, "Lives of the pods, times in UTC")[0][0])
        assert page.locator("img, main b").count() == 0
        page.locator("#timeline [aria-roledescription=point]").first.hover(force=True)
        assert page.locator("img").count() == 0
    written = path.read_text()
    assert "<img" not in written.partition("<main>")[2].partition("</main>")[0]
    assert written.count("</script>") == 3


def test_a_phone_in_the_dark(browser: Browser, path: Path) -> None:
    lines = bruteforce.run()
    pages.write(pages.of_lines(lines, pages.event(5, epoch(1, 0.5, 0.7, 1234))), path)
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    with pages.opened(browser, path, **phone) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        wide = "[...document.querySelectorAll('.scrolls')].filter((each) => each.scrollWidth > each.clientWidth)"
        assert page.evaluate(f"{wide}.length") == 0
        assert not page.locator(".wheel").first.is_visible()
        background = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(background) == "rgb(20, 23, 26)"
        colour = "document.querySelector('#map-0 .role-axis-label text').getAttribute('fill')"
        dark = page.evaluate(colour)
        page.emulate_media(color_scheme="light")
        page.wait_for_selector(f"#map-0 .role-axis-label text:not([fill='{dark}'])")
        assert page.evaluate(background) == "rgb(255, 255, 255)"


def test_the_shard_map_is_seen_before_the_other_charts_are_drawn(browser: Browser, path: Path) -> None:
    pages.write(pages.of_lines(bruteforce.run(), pages.event(5, epoch(1, 0.5, 0.7, 1234))), path)
    with browser.new_context() as context:
        page = context.new_page()
        page.add_init_script(
            """new MutationObserver((_, self) => {
                if (!document.querySelector("#map-0[data-drawn]")) return;
                self.disconnect();
                requestAnimationFrame(() => setTimeout(() => {
                    console.log(document.querySelectorAll(".chart[data-drawn]").length);
                }));
            }).observe(document, {attributes: true, subtree: true});"""
        )
        with page.expect_console_message() as drawn:
            page.goto(path.as_uri())
        assert int(drawn.value.text) < page.locator(".chart").count()
        page.wait_for_selector("html[data-drawn]", state="attached")


def test_the_page_can_make_no_request(browser: Browser, path: Path) -> None:
    pages.write(pages.of_lines(bruteforce.run()), path)
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(path.as_uri())
        answered: list[str] = []
        page.on("response", lambda response: answered.append(response.url))
        refused = page.evaluate(
            """() => new Promise((resolve) => {
                document.addEventListener("securitypolicyviolation", (event) => resolve(event.violatedDirective));
                document.body.append(Object.assign(new Image(), {src: "http://127.0.0.1:9/a.png"}));
            })"""
        )
        assert refused == "img-src"
        assert answered == []


def test_1000_pods_and_100_epochs_fit_in_2_mb(browser: Browser, path: Path) -> None:
    snapshot, verdict = large.run(1000, 100)
    document.write(snapshot, verdict, path)
    assert path.stat().st_size < 2_000_000
    with pages.opened(browser, path) as page:
        assert page.locator(".chart[data-drawn]").count() == page.locator(".chart").count() == 5
        assert page.locator("#timeline canvas").count() == 1
