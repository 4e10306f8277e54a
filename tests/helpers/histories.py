"""Faithful runs of any course, for properties: resumed, continued with a longer plan, or ended before their order."""

from dataclasses import dataclass, field
from typing import Any

import bruteforce
from bruteforce import Ends, Line, World
from hypothesis import strategies as st

REASON = "patience"
contracts = st.sampled_from(["exact", "padded", "drop_last"])


@dataclass
class History:
    """The lines of a run, and what its last line says beside them."""

    lines: list[Line]
    worlds: list[World]
    own: tuple[str, ...] = ()  # phases that state their own worlds
    ends: Ends = field(default_factory=dict)
    before: list[Line] = field(default_factory=list)  # the last line of the attempts that had a shorter plan

    @property
    def last(self) -> Line:
        stopped = {"stopped": REASON} if self.ends else {}
        return bruteforce.last(self.lines, self.worlds, self.own, self.ends, **stopped)

    @property
    def fulfilled(self) -> bool:
        """Whether its lines alone have all that is planned."""
        plan = self.lines[-1]["plan"]
        return all(epoch == plan[phase] and position for phase, (epoch, position) in self.ends.items())


@st.composite
def resumed(draw: st.DrawFn) -> History:
    """Any phase may have been resumed in its middle, by any number of ranks."""
    n, plan = draw(st.integers(1, 60), "n"), {"train": draw(st.integers(1, 3)), "test": draw(st.integers(0, 3))}
    blocks = [(phase, epoch) for phase, epochs in plan.items() for epoch in range(1, epochs + 1)]
    begins = {
        (phase, epoch): (draw(st.integers(0, (n if phase == "train" else max(1, n // 6)) - 1)), draw(st.integers(1, 7)))
        for phase, epoch in draw(st.lists(st.sampled_from(blocks), unique=True, max_size=3))
    }
    lines = bruteforce.run(n, plan=plan, resumed=begins, **draw(_common()))
    return History(lines, [(1, 0, 1)], tuple(dict.fromkeys(each["phase"] for each in lines)))


@st.composite
def restarted(
    draw: st.DrawFn,
    contracts: st.SearchStrategy[str] = contracts,
    ended: bool | None = None,
    grown: bool | None = None,
) -> History:
    """The training went on with other ranks, perhaps with a longer plan at last, and perhaps ended early."""
    ended, grown = (draw(st.booleans()) if each is None else each for each in (ended, grown))
    n, epochs = draw(st.integers(1, 60), "n"), draw(st.integers(1 + grown, 4), "epochs")
    plan, ends = {"train": epochs, "test": draw(st.integers(0, epochs))}, dict[str, tuple[int, int]]()
    since = draw(st.integers(2, epochs)) if grown else 1
    if ended and n > 1:
        first = st.integers(1, n - 1), st.integers(0, n - 1)
        epoch = draw(st.integers(since, epochs))
        ends["train"] = (epoch, draw(first[epoch > since]))
        if plan["test"] >= since and draw(st.booleans()):
            ends["test"] = (draw(st.integers(since, plan["test"])), draw(st.integers(0, max(1, n // 6) - 1)))
    places = st.tuples(st.integers(1, epochs), st.integers(0, n - 1))
    final = ends.get("train", (epochs, n - 1))
    later = {*draw(st.lists(places.filter(lambda place: (1, 0) < place <= final), unique=True, max_size=3))}
    later |= {(since, 0)} if grown else set()
    common = draw(_common(contracts))
    # An account refuses an added epoch that has no sample.
    most = min(7, max(1, n // 6)) if grown and common["contract"] == "drop_last" else 7
    worlds = [(*place, draw(st.integers(1, most))) for place in [(1, 0), *sorted(later)]]
    batch = draw(st.sampled_from([1, 4, 20]))
    lines = bruteforce.run(n, plan=plan, worlds=worlds, ends=ends, batch=batch, **common)
    early = [each for each in lines if each["epoch"] < since]
    made = {phase: min(count, since - 1) for phase, count in plan.items()}
    shorter = made if draw(st.booleans()) else {phase: draw(st.integers(made[phase], plan[phase])) for phase in plan}
    for each in early:
        each["plan"] = shorter
    before = [bruteforce.last(early, [each for each in worlds if each[0] < since])] if early and shorter == made else []
    return History(lines, worlds, ends=ends, before=before)


def histories() -> st.SearchStrategy[History]:
    """Any of them."""
    return restarted() | resumed()


@st.composite
def _common(draw: st.DrawFn, contracts: st.SearchStrategy[str] = contracts) -> dict[str, Any]:
    return {"contract": draw(contracts), "seed": draw(st.integers(0, 99))}
