"""The last line of an account's run, from what its phases have consumed."""

from collections.abc import Mapping, Sequence

from torchtally.accounting.ledger.state import PhaseState
from torchtally.accounting.ledger.tally import Run
from torchtally.errors import Refused, Unproven
from torchtally.proof import drop_counts
from torchtally.proof.digest import as_text
from torchtally.proof.local_order import UnknownSizes
from torchtally.proof.run_summary import PhaseSummary, RunSummary
from torchtally.proof.worlds import RESUMED, World, otherwise

# Of a phase, in its state and in the line.
_SAME = ["n", "contract", "order", "sizes", "data", "consumed", "end"]


def summary_of(
    run: Run,
    phases: Mapping[str, PhaseState],
    stopped: str | None,
    caveats: Sequence[str],
    discarded: int,
    model: str | None = None,
) -> RunSummary:
    """Return what the line says. `stopped` says why the run ends early."""
    worlds = _of_run(phases)
    return RunSummary(
        **{each: getattr(run, each) for each in ("run", "attempt", "began", "pod", "task", "plan", "seed")},
        worlds=worlds,
        stopped=stopped,
        phases={
            name: PhaseSummary(
                **{each: getattr(phase, each) for each in _SAME},
                digest=as_text(phase.digest),
                dropped_digest=as_text(phase.dropped_digest) if phase.dropped_digest else None,
                drawn_digest=as_text(phase.drawn_digest) if phase.drawn_digest else None,
                dropped=phase.dropped or None,
                dropped_in=(phase.dropped_in or None) if phase.completed > 1 else None,
                drawn=phase.drawn if phase.drawn_digest else None,
                worlds=otherwise(name, run.plan[name], phase.worlds, worlds),
            )
            for name, phase in phases.items()
        },
        caveats=tuple(caveats),
        model=model,
        discarded=discarded,
    )


def check(summary: RunSummary) -> None:
    """Check that a last line proves all phases on its own.

    Raises Unproven, or Refused if the order of a phase is not known.
    """
    RunSummary.parse(summary.printed())
    for name, stated in summary.phases.items():
        try:
            expected = summary.expected(name)
        except UnknownSizes:
            raise Refused(f"{name}: its loader or sampler must be made before the run ends, for its order") from None
        if expected != (stated.accounted, stated.accounted_digest):
            raise Unproven(f"{name} is not proved: its epochs together have not consumed what the contract says")
        if (runs := stated.dropped_in) and (drop_counts.total(runs), drop_counts.folded(runs, summary.run)) != (
            stated.dropped,
            stated.of_dropped.words[0],
        ):
            raise Unproven(f"{name} is not proved: its epochs together have not dropped what each has")


def _of_run(phases: Mapping[str, PhaseState]) -> tuple[World, ...]:
    """The worlds of the phase that the line takes for the run, or of the first one: there, without positions."""
    if training := phases.get(RESUMED):
        return training.worlds
    places = {epoch: ranks for epoch, _, ranks in next(iter(phases.values())).worlds}
    return tuple((epoch, 0, ranks) for epoch, ranks in places.items())
