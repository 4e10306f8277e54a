"""The final sentence on a run, or on several of them."""

from collections import Counter

from torchtally.verifier.line_groups import blocks_of, firsts, in_order
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
    plan = last.plan if last else verdict.groups[-1].first.plan
    world = last.worlds[-1][2] if last else verdict.groups[-1].first.world
    facts = [f"run {verdict.run}", counted(world, "rank")]
    facts += [f"{phase} {_extent(verdict, phase, planned)}" for phase, planned in plan.items()]
    if last and last.model:
        facts.append(f"model {last.model}")
    facts[-1] += _dropped(verdict)
    stopped = f"; stopped: {last.stopped}" if last and last.stopped else ""
    caveats = "".join(f"; {each}" for each in last.caveats) if last else ""
    return f"the proof holds: {', '.join(facts)}{stopped}{caveats}" + (_discarded(last.discarded) if last else "")


def _extent(verdict: Verdict, phase: str, planned: int) -> str:
    """`2 epochs`, `1 of 5 epochs`, `1 epoch and the first 640 of 4096 samples of epoch 2`."""
    last = verdict.last
    epochs = last.epochs(phase) if last else planned
    contract = last.phases[phase].contract if last and phase in last.phases else _contract(verdict, phase)
    drawn = ", as its sampler drew them" * (contract == "as_drawn")
    if last:
        ends = [(last.end(phase, epochs), last.phases[phase].n)] if epochs else []
    else:
        ends = [(line.end, line.n) for line in firsts(verdict.groups) if line.block == (phase, epochs)]
    for end, n in ends[:1]:
        if end is not None:
            part = (
                f"the first {end} draws of epoch {epochs}"
                if drawn
                else f"the first {end} of {n} samples of epoch {epochs}"
            )
            return (f"{counted(epochs - 1, 'epoch')} and {part}" if epochs > 1 else part) + drawn
    return (counted(epochs, "epoch") if epochs == planned else f"{epochs} of {counted(planned, 'epoch')}") + drawn


def _contract(verdict: Verdict, phase: str) -> str | None:
    """That of a phase's lines, if there are any."""
    return next((line.contract for line in firsts(verdict.groups) if line.phase == phase), None)


def summary_of_runs(verdicts: list[Verdict]) -> str:
    """Return the final sentence on several runs: which are proved, and where those end that are not complete."""
    proved = [str(verdict.run) for verdict in verdicts if verdict.holds]
    others = [f"{verdict.run}{_end(verdict)}" for verdict in verdicts if not verdict.holds]
    named = [f": {', '.join(proved)}" * bool(proved), f"; not proved: {', '.join(others)}" * bool(others)]
    return f"{len(proved)} of {len(verdicts)} runs {'is' if len(proved) == 1 else 'are'} proved{''.join(named)}"


def _end(verdict: Verdict) -> str:
    """Where the lines of an unfinished run end."""
    if verdict.last:
        return ""
    if not verdict.groups:
        return " (it has no whole line)"
    blocks = blocks_of(verdict.groups)
    newest = verdict.groups[-1].first.block
    *_, line = in_order(each for each in verdict.groups if each.first.block == newest)
    if all(blocks.issuperset((phase, epoch) for epoch in range(1, end + 1)) for phase, end in line.plan.items()):
        return ""
    return f" (its lines end in {line.phase} epoch {line.epoch}, {line.plan[line.phase]} planned)"


def _dropped(verdict: Verdict) -> str:
    """`; dropped by the program: 3 samples of train`, counted over all epochs."""
    if verdict.last:
        counts = {phase: stated.dropped for phase, stated in verdict.last.phases.items() if stated.dropped}
    else:
        together = [line for line in verdict.together if line.dropped]
        counts = {
            phase: sum(line.dropped or 0 for line in together if line.phase == phase)
            for phase in dict.fromkeys(line.phase for line in together)
        }
    parts = [f"{counted(count, 'sample')} of {phase}" for phase, count in counts.items()]
    return f"; dropped by the program: {', '.join(parts)}" if parts else ""


def _discarded(count: int) -> str:
    if not count:
        return ""
    what, were, do = ("sample", "was", "does") if count == 1 else ("samples", "were", "do")
    return f"; {count} {what} consumed by steps that no checkpoint kept {were} discarded and {do} not count"
