"""What the parts of the page have in common, computed once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from torchtally.page import curves, shard_map, timeline
from torchtally.page.chart import Chart
from torchtally.page.life_parts import Lived, lived
from torchtally.page.restarts import Restart, restarts
from torchtally.proof.line import TallyLine
from torchtally.record.model import Epoch, Run, Snapshot
from torchtally.verifier.outcome import Outcome
from torchtally.verifier.verdict import Verdict

_MARKS = {
    Outcome.PROVED: "✓",
    Outcome.DISPROVED: "✗",
    Outcome.FAILED: "✗",
    Outcome.INCOMPLETE: "…",
    Outcome.PENDING: "…",
}


@dataclass(frozen=True, kw_only=True)
class Content:
    verdict: Verdict
    snapshot: Snapshot
    run: Run | None  # that the verdict is about
    lives: Sequence[Lived]
    restarts: Sequence[Restart]
    epochs: Sequence[Epoch]  # of those made twice, the later one
    maps: Mapping[str, Chart]  # by phase
    curves: Sequence[Chart]
    timeline: Chart | None

    @classmethod
    def of(cls, snapshot: Snapshot, verdict: Verdict) -> Self:
        run = next((run for run in snapshot.runs if run.id == verdict.run), None)
        lives = lived(snapshot, run)
        again = [*restarts(snapshot, run)] if run else []
        trained = [line.n for line in verdict.lines if line.phase == "train"]
        rows = [each.row(trained[0] if trained else 1) for each in again]
        by_time = sorted(run.epochs, key=lambda each: each.time) if run else []
        epochs = sorted({each.epoch: each for each in by_time}.values(), key=lambda each: each.epoch)
        leading = snapshot.pods[0].name if snapshot.pods else None
        reports = [each for each in run.progress if each.pod == leading and each.phase == "train"] if run else []
        return cls(
            verdict=verdict,
            snapshot=snapshot,
            run=run,
            lives=lives,
            restarts=again,
            epochs=epochs,
            maps={
                phase: shard_map.chart(verdict, phase, rows)
                for phase in dict.fromkeys(line.phase for line in verdict.lines)
            },
            curves=curves.charts(epochs, reports, rows),
            timeline=timeline.chart(lives) if any(life.parts for life in lives) else None,
        )

    @property
    def task(self) -> str:
        lines: Sequence[TallyLine] = self.verdict.lines[:1]
        known = [
            *(line.task for line in lines),
            self.verdict.last and self.verdict.last.task,
            self.run and self.run.task,
        ]
        return next((name for name in known if name), "A run")

    @property
    def mark(self) -> str:
        return _MARKS[self.verdict.outcome]

    @property
    def charts(self) -> list[Chart]:
        return [*self.maps.values(), *self.curves, *([self.timeline] if self.timeline else [])]
