"""The final sentence on a run, or on several of them."""

from collections import Counter

from torchtally.proof.run_summary import RunSummary
from torchtally.verifier.line_groups import blocks_of, in_order
from torchtally.verifier.outcome import Outcome
from torchtally.verifier.phrasing import counted, numbers
from torchtally.verifier.problem import Block
from torchtally.verifier.verdict import Verdict


def conclusion(verdict: Verdict) -> str:
    """Return the final sentence on a run, which names its outcome."""
    match verdict.outcome:
        case Outcome.PROVED:
            return summary(verdict)
        case Outcome.DISPROVED:
            return "disproved: lines contradict the contract or each other"
        case Outcome.INCOMPLETE if verdict.holds:
            return "incomplete: the run's last line is missing, which says how it has ended, so nothing is proved"
        case Outcome.INCOMPLETE:
            return "incomplete: lines are missing or cannot be checked, so nothing is proved"
        case outcome:
            assert verdict.job
            return f"{outcome}: {verdict.job.sentence}{_proved_so_far(verdict)}"


def _proved_so_far(verdict: Verdict) -> str:
    """Phases and epochs of which every line is there, where none contradicts."""
    ranks = Counter[Block]()
    for each in verdict.groups:
        ranks[each.first.block] += len(each)
    whole: dict[str, list[int]] = {}
    for line in verdict.together:
        if ranks[line.block] == line.world + 1 and not verdict.of(line.block):
            whole.setdefault(line.phase, []).append(line.epoch)
    parts = [f"{phase} {numbers('epoch', epochs)}" for phase, epochs in whole.items()]
    return f"; proved up to there: {', '.join(parts) or 'nothing'}"


def summary(verdict: Verdict) -> str:
    """Return the final sentence on a proof that holds."""
    last = verdict.last
    assert last
    facts = [f"run {verdict.run}", counted(last.worlds[-1][2], "rank")]
    facts += [f"{phase} {_extent(last, phase, planned)}" for phase, planned in last.plan.items()]
    if last.model:
        facts.append(f"model {last.model}")
    facts[-1] += _dropped(last)
    stopped = f"; stopped: {last.stopped}" if last.stopped else ""
    caveats = "".join(f"; {each}" for each in last.caveats)
    return f"the proof holds: {', '.join(facts)}{stopped}{caveats}{_discarded(last.discarded)}"


def _extent(last: RunSummary, phase: str, planned: int) -> str:
    """`2 epochs`, `1 of 5 epochs`, `1 epoch and the first 640 of 4096 samples of epoch 2`."""
    epochs, stated = last.epochs(phase), last.phases.get(phase)
    drawn = ", as its sampler drew them" * (stated is not None and stated.contract == "as_drawn")
    end = last.end(phase, epochs) if epochs else None
    if end is not None and stated:
        part = f"the first {end} draws of" if drawn else f"the first {end} of {stated.n} samples of"
        part += f" epoch {epochs}"
        return (f"{counted(epochs - 1, 'epoch')} and {part}" if epochs > 1 else part) + drawn
    return (counted(epochs, "epoch") if epochs == planned else f"{epochs} of {counted(planned, 'epoch')}") + drawn


def summary_of_runs(verdicts: list[Verdict]) -> str:
    """Return the final sentence on several runs: which are proved, and where those end that are not complete."""
    proved = [str(verdict.run) for verdict in verdicts if verdict.outcome is Outcome.PROVED]
    others = [f"{verdict.run}{_end(verdict)}" for verdict in verdicts if verdict.outcome is not Outcome.PROVED]
    named = [f": {', '.join(proved)}" * bool(proved), f"; not proved: {', '.join(others)}" * bool(others)]
    return f"{len(proved)} of {len(verdicts)} runs {'is' if len(proved) == 1 else 'are'} proved{''.join(named)}"


def _end(verdict: Verdict) -> str:
    """Where the lines of an unfinished run end."""
    if verdict.last:
        return ""
    if verdict.holds:
        return " (its last line is missing)"
    if not verdict.groups:
        return " (it has no whole line)"
    blocks = blocks_of(verdict.groups)
    newest = verdict.groups[-1].first.block
    *_, line = in_order(each for each in verdict.groups if each.first.block == newest)
    if all(blocks.issuperset((phase, epoch) for epoch in range(1, end + 1)) for phase, end in line.plan.items()):
        return ""
    return f" (its lines end in {line.phase} epoch {line.epoch}, {line.plan[line.phase]} planned)"


def _dropped(last: RunSummary) -> str:
    """`; dropped by the program: 3 samples of train`, counted over all epochs."""
    counts = {phase: stated.dropped for phase, stated in last.phases.items() if stated.dropped}
    parts = [f"{counted(count, 'sample')} of {phase}" for phase, count in counts.items()]
    return f"; dropped by the program: {', '.join(parts)}" if parts else ""


def _discarded(count: int) -> str:
    if not count:
        return ""
    what, were, do = ("sample", "was", "does") if count == 1 else ("samples", "were", "do")
    return f"; {count} {what} consumed by steps that no checkpoint kept {were} discarded and {do} not count"
