"""The head of the page: the verdict, and the run in a few numbers."""

from collections.abc import Iterable, Iterator, Sequence

from torchtally.page.content import Content
from torchtally.page.markup import Html, details, element
from torchtally.record.sentences import date, duration
from torchtally.verifier.conclusion import conclusion
from torchtally.verifier.outcome import Outcome
from torchtally.verifier.phrasing import counted

_SHOWN = 6  # problems; the others on request
_MOST = 500  # problems
Fact = tuple[str, object, str]  # name, value, and what it is of


def header(content: Content) -> Iterator[Html]:
    """The title, the verdict, and the numbers."""
    yield element("h1", content.task)
    when = ""
    if content.lives:
        began, over = min(life.began for life in content.lives), max(life.over for life in content.lives)
        when = f" · {date(began)} · {duration(over - began)}"
    yield element("p", f"Run {content.verdict.run or 'unknown'}{when}", class_="of")
    yield _verdict(content)
    yield from facts(_facts(content))


def facts(given: Iterable[Fact]) -> Iterator[Html]:
    """The numbers."""
    shown = [
        element("div", element("dt", name), element("dd", value, element("small", of) if of else None))
        for name, value, of in given
    ]
    if shown:
        yield element("dl", *shown, class_="facts")


def _verdict(content: Content) -> Html:
    verdict = content.verdict
    problems = [str(each) for each in verdict.problems]
    return box(content.mark, verdict.outcome, conclusion(verdict), problems, list(verdict.notes))


def box(mark: str, outcome: Outcome, sentence: str, problems: list[str], notes: list[str]) -> Html:
    """What a judgement comes to, and why."""
    shown, others = problems[:_SHOWN], problems[_SHOWN:_MOST]
    if (more := len(problems) - _MOST) > 0:
        others.append(f"and {more} more, which the verifier prints")
    notes = [f"Note: {note}" for note in notes]
    return element(
        "section",
        element("strong", f"{mark} {outcome.capitalize()}".lstrip()),
        element("span", sentence[:1].upper() + sentence[1:]),
        _listed([*shown, *notes[:_MOST]]),
        details(f"{counted(len(problems) - _SHOWN, 'more problem')}", _listed(others)) if others else None,
        class_=f"verdict {outcome}",
        aria_label="Verdict",
    )


def _listed(sentences: Sequence[str]) -> Html | None:
    return element("ul", *(element("li", each) for each in sentences)) if sentences else None


def _facts(content: Content) -> Iterator[Fact]:
    lines, last = content.verdict.lines, content.verdict.last
    if lines:
        newest = lines[-1]
        pods = len({line.pod for line in lines if line.rank != "all"})
        yield "Ranks", newest.world, f"in {pods} pods" if pods > 1 else ""
        main = next(iter(newest.plan))
        made = [line for line in lines if line.phase == main]
        yield "Epochs", max((line.epoch for line in made), default=0), f"of {newest.plan[main]} planned"
        if made:
            yield "Samples an epoch", f"{made[-1].n:,}", ""
    if content.epochs:
        newest_epoch = content.epochs[-1]
        after = f"after epoch {newest_epoch.epoch}"
        yield "Test accuracy", f"{newest_epoch.test_accuracy:.2%}", after
        if newest_epoch.loss is not None:
            yield "Training loss", f"{newest_epoch.loss:.4f}", after
        yield "Samples a second", f"{newest_epoch.samples_per_second:,.0f}", "of all ranks"
    if content.run:
        count = len(content.restarts)
        yield "Restarts", count, f"{last.discarded:,} samples discarded" if last and count else ""
    saved = [each.seconds for each in content.run.checkpoints if each.seconds is not None] if content.run else []
    if saved:
        yield "Checkpoints", len(saved), f"{max(saved):.2g} s at most"
