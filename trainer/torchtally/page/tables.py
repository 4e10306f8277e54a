"""The tables of the page: what the charts show, for readers without eyes for them, and what needs no chart."""

from collections.abc import Iterator, Sequence, Set
from itertools import islice
from pathlib import PurePath

from torchtally.page.content import Content
from torchtally.page.life_parts import SUCCEEDED, Lived
from torchtally.page.markup import Html, details, element, table
from torchtally.page.wrong import WRONG, doubted, places, state_of
from torchtally.proof import table as proof_table
from torchtally.proof.line import TallyLine
from torchtally.record.model import Attempt, Snapshot
from torchtally.record.sentences import clock, duration, of_straggler
from torchtally.verifier.problem import Block
from torchtally.verifier.verdict import fulfilled

_MOST = 400  # rows of a table
_FEW = 200  # lines, of which all are shown
_COMMANDS = """\
torchtally verify --job JOB -n NAMESPACE    # the logs of the pods in the cluster
torchtally verify FOLDER                    # or logs that were stored
"""


def proofs(content: Content, phase: str) -> Html:
    """The proof table of a phase: of many lines those of all ranks together, and those that are wrong."""
    lines = [line for line in content.verdict.lines if line.phase == phase]
    doubts = doubted(content.verdict)
    shown = [line for line in lines if len(lines) <= _FEW or line.rank == "all" or proof_table.wrong(_values(line))]
    together = [line for line in shown if line.rank == "all"]
    some = [line for line in shown if line.rank != "all"][:_MOST]
    rows = []
    for line in sorted([*some, *together], key=lambda line: line.epoch):
        result = _result(content, line, doubts) if line.rank == "all" else ""
        rows.append([*proof_table.cells(_values(line))[1:], result])
    header = [*proof_table.HEADER[1:], "result"]
    numbers = [name for name in header if name not in ("pod", "result")]
    return table(f"Samples of the phase {phase}", header, rows, numbers)


def _values(line: TallyLine) -> dict[str, object]:
    return {name: getattr(line, name) for name in (*proof_table.HEADER, "world")}


def _result(content: Content, line: TallyLine, doubts: Set[Block]) -> str:
    if line.block in doubts:
        return f"✗ {content.verdict.of(line.block)[0].text}"
    return f"✓ {fulfilled(line)}"


def wrong(content: Content) -> Iterator[Html]:
    """Every sample that is named as lost or duplicated."""
    doubts = doubted(content.verdict)
    lines = (line for line in content.verdict.lines if state_of(line, doubts) == WRONG)
    rows = [
        [
            each.line.phase,
            each.line.epoch,
            "all" if each.line.rank == "all" else each.line.rank,
            each.what,
            each.positions,
            each.samples,
        ]
        for each in islice(places(lines), _MOST)
    ]
    if rows:
        yield element("h3", "Lost and duplicated samples")
        header = ["phase", "epoch", "rank", "what", "positions in the order", "samples"]
        yield table("Lost and duplicated samples", header, rows, ("epoch", "rank"))


def epochs(content: Content) -> Html:
    """The results of the epochs."""
    header = ["epoch", "training loss", "test loss", "test accuracy", "samples a second"]
    rows = [
        [
            each.epoch,
            _loss(each.loss),
            _loss(each.test_loss),
            f"{each.test_accuracy:.2%}",
            f"{each.samples_per_second:,.0f}",
        ]
        for each in content.epochs
    ]
    return details("As a table", table("Results of the epochs", header, rows, header))


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def pods(lives: Sequence[Lived]) -> Html:
    """Each start of each pod."""
    header = ["pod", "from", "to", "lasted", "how it ended", "exit code", "cause"]
    rows = [
        [
            life.pod,
            clock(life.began),
            clock(life.over),
            duration(life.over - life.began),
            life.how or "no end reported",
            life.code,
            life.cause,
        ]
        for life in sorted(lives, key=lambda life: life.how == SUCCEEDED)[:_MOST]
    ]
    return table("Lives of the pods, times in UTC", header, rows, ("lasted", "exit code"))


def stragglers(content: Content) -> Iterator[Html]:
    """The pods that the ranks have named as slow."""
    if not content.run or not content.run.stragglers:
        return
    yield element("h2", "Slow pods")
    rows = [
        [clock(each.time), each.slow, each.slow_rank, of_straggler(each)]
        if each.slow
        else [clock(each.time), "none", "", "no pod is slower than the other pods any more"]
        for each in content.run.stragglers[-_MOST:]
    ]
    yield table("Slow pods, times in UTC", ["time", "pod", "rank", "what is slow"], rows, ("rank",))


def restarts(content: Content) -> Iterator[Html]:
    if not content.restarts:
        return
    yield element("h2", "Restarts")
    header = ["restart", "time", "resumes in epoch", "at sample", "ranks", "checkpoint", "causes"]
    rows = [
        [
            each.number,
            clock(each.attempt.first),
            each.attempt.epoch,
            each.attempt.position,
            each.attempt.world,
            _checkpoint(each.attempt),
            "; ".join(each.causes) or "not in these logs",
        ]
        for each in content.restarts
    ]
    yield table("Restarts, times in UTC", header, rows, ("restart", "resumes in epoch", "at sample", "ranks"))


def _checkpoint(attempt: Attempt) -> str:
    if not attempt.resumed:
        return "none: it began anew"
    return PurePath(attempt.checkpoint).name if attempt.checkpoint else "of the program"


def checkpoints(content: Content) -> Iterator[Html]:
    if not content.run or not content.run.checkpoints:
        return
    yield element("h2", "Checkpoints")
    rows = [
        [
            clock(each.time),
            each.epoch,
            each.position,
            "" if each.seconds is None else f"{each.seconds:.3f}",
            f"✗ {each.cause}" if each.cause else PurePath(each.path or "").name,
        ]
        for each in content.run.checkpoints[-_MOST:]
    ]
    header = ["time", "epoch", "at sample", "seconds", "file"]
    yield table("Checkpoints, times in UTC", header, rows, ("epoch", "at sample", "seconds"))


def setting(content: Content) -> Iterator[Html]:
    """Versions, options, and data."""
    rows = [*_versions(content.snapshot)]
    if options := {pod.options: None for pod in content.snapshot.pods if pod.options}:
        rows.append(("options", "; ".join(options)))
    if content.run:
        rows.append(("seed", content.run.seed))
        for phase in content.run.phases:
            contract = f"{phase.n} samples, {phase.batch} a step of all ranks, {phase.contract}, {phase.order}"
            rows.append((f"phase {phase.name}", contract))
        rows += {f"data of {phase.name}": phase.data for phase in content.run.phases}.items()
    if content.verdict.last and content.verdict.last.model:
        rows.append(("model", content.verdict.last.model))
    if rows:
        yield element("h2", "Versions, options, and data")
        yield table(
            "Versions, options, and data", ["name", "value"], [(name, element("code", each)) for name, each in rows]
        )


def versions(snapshot: Snapshot) -> Iterator[Html]:
    """Versions alone."""
    if rows := [*_versions(snapshot)]:
        yield element("h2", "Versions")
        yield table("Versions", ["name", "value"], [(name, element("code", each)) for name, each in rows])


def _versions(snapshot: Snapshot) -> Iterator[tuple[str, object]]:
    for name in ("torchtally", "torch", "python"):
        found = {pod.versions[name] for pod in snapshot.pods if name in pod.versions}
        if found:
            yield name, ", ".join(sorted(found))


def verification(content: Content) -> Iterator[Html]:
    """How to repeat the proof."""
    yield element("h2", "Verify it yourself")
    yield element(
        "p",
        "The verifier computes every expected value from the tally lines alone. It needs Python, and no PyTorch. Its "
        "exit code is 0 only if the proof holds.",
    )
    yield element("pre", element("code", _COMMANDS))
    last = content.verdict.last
    if last and last.model:
        yield element("p", "The proof is about the model with this hash:")
        yield element("pre", element("code", f"$ sha256sum model.pt\n{last.model.removeprefix('sha256:')}  model.pt\n"))
    yield element(
        "p",
        "A proof finds mistakes, not forgery: anyone can compute the expected values. This page is as trustworthy as "
        "the logs that it was made from.",
        class_="note",
    )
