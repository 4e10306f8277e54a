"""The last line of a run, against epochs whose samples are dealt and counted one by one."""

import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.proof import digest, run_summary
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest
from torchtally.proof.modular import P
from torchtally.proof.order import Order
from torchtally.proof.run_summary import PhaseSummary, RunSummary
from torchtally.proof.worlds import World

RUN = "3f9c2a7b10de"
G, H = digest.base(RUN), digest.base(RUN + " epochs")


def expected(
    phase: str, epochs: int, *, n: int, contract: Contract, order: Order, seed: int, **of_run: Any
) -> tuple[int, Digest]:
    """What the last line of such a run should say of a phase."""
    return summary(phase, epochs, n=n, contract=contract, order=order, seed=seed, **of_run).expected(phase)


def summary(
    phase: str,
    epochs: int,
    *,
    n: int = 50,
    contract: Contract = "exact",
    order: Order = "feistel-1",
    seed: int = 0,
    worlds: list[World],
    own: list[World] | None = None,
    end: tuple[int, int] | None = None,
) -> RunSummary:
    stated = PhaseSummary(
        n=n,
        contract=contract,
        order=order,
        data="any",
        consumed=0,
        digest=Digest().packed,
        worlds=own and tuple(own),
        end=end,
    )
    return RunSummary(
        run=RUN,
        attempt=0,
        pod="any",
        task="any",
        plan={phase: epochs},
        seed=seed,
        worlds=tuple(worlds),
        phases={phase: stated},
        model=None,
        discarded=0,
    )


@st.composite
def courses(draw: st.DrawFn) -> tuple[int, int, list[World]]:
    """n, epochs and the numbers of ranks that a training went on with."""
    n, epochs = draw(st.integers(1, 50)), draw(st.integers(1, 6))
    places = draw(st.lists(st.tuples(st.integers(1, epochs), st.integers(0, n - 1)), unique=True, max_size=5))
    worlds = [(*place, draw(st.integers(1, 9))) for place in sorted({(1, 0), *places})]
    return n, epochs, worlds


@pytest.mark.parametrize(
    ("end", "epochs", "ends"),
    [(None, 4, [None] * 4), ((4, 9), 4, [None, None, None, 9]), ((3, 1), 3, [None, None, 1]), ((3, 0), 2, [None] * 2)],
)
def test_which_epochs_a_phase_has_and_where_they_end(end: Any, epochs: int, ends: list[int | None]) -> None:
    of_phase = summary("train", 4, worlds=[(1, 0, 4)], end=end)
    assert of_phase.epochs("train") == epochs
    assert [of_phase.end("train", epoch) for epoch in range(1, epochs + 1)] == ends
    assert of_phase.epochs("test") == 0  # it had not begun


def test_a_million_epochs_of_a_billion_samples() -> None:
    """Each thousand epochs of an undisturbed train_state are the ones before, times h to the power of a thousand."""
    facts = {"n": 10**9, "contract": "exact", "order": "feistel-1", "seed": 0, "worlds": [(1, 0, 8), (777, 12345, 3)]}
    consumed, thousand = expected("train", 1000, **facts)
    assert consumed == 10**12
    together, power = Digest(), 1
    for _ in range(1000):
        together += thousand * power
        power = power * pow(H, 1000, P) % P
    assert expected("train", 10**6, **facts) == (10**15, together)


def everything(plan: dict[str, int], n: int = 20) -> list[dict[str, object]]:
    """Lines of all ranks together; digests need not be right, for nothing here compares them."""
    chance = random.Random(n)
    return [
        {
            "v": 2,
            "run": RUN,
            "attempt": epoch // 2,
            "began": 1000 + epoch // 2,
            "pod": "demo-master-0",
            "task": "mine",
            "phase": phase,
            "epoch": epoch,
            "plan": plan,
            "rank": "all",
            "seed": 7,
            "n": n,
            "contract": "exact",
            "order": "sequential" if phase == "test" else "feistel-1",
            "data": f"sha256:{phase}",
            "consumed": n + epoch,
            "digest": str(Digest(tuple(chance.randrange(P) for _ in range(digest.WORDS)))),
        }
        for epoch in range(1, max(plan.values()) + 1)
        for phase in plan
        if epoch <= plan[phase]
    ]


def test_the_line_has_the_sums_of_each_phase_and_what_the_others_have_in_common() -> None:
    lines = everything({"train": 3, "test": 1, "never": 0})
    made = run_summary.line(lines, [(1, 0, 4), (2, 9, 3)], "sha256:0", 31)
    folded = {
        phase: digest.fold(
            [(each["epoch"], digest.parse(each["digest"])) for each in lines if each["phase"] == phase], RUN
        )
        for phase in ("train", "test")
    }
    assert made == {
        "v": 2,
        "run": RUN,
        "attempt": 1,
        "began": 1001,
        "pod": "demo-master-0",
        "task": "mine",
        "phase": "all",
        "plan": {"train": 3, "test": 1, "never": 0},
        "seed": 7,
        "worlds": [[1, 0, 4], [2, 9, 3]],
        "phases": {
            "train": {
                "n": 20,
                "contract": "exact",
                "order": "feistel-1",
                "data": "sha256:train",
                "consumed": 66,
                "digest": str(folded["train"]),
            },
            "test": {
                "n": 20,
                "contract": "exact",
                "order": "sequential",
                "data": "sha256:test",
                "consumed": 21,
                "digest": str(folded["test"]),
            },
        },
        "model": "sha256:0",
        "discarded": 31,
    }


def test_ranks_that_trained_nothing_are_not_in_it() -> None:
    lines = everything({"train": 2})
    assert run_summary.line(lines, [(1, 0, 4), (3, 0, 2)], None, 0)["worlds"] == [[1, 0, 4]]
    assert run_summary.line(lines, [(1, 0, 4), (2, 19, 2)], None, 0)["worlds"] == [[1, 0, 4], [2, 19, 2]]


def test_a_fold_tells_epochs_apart() -> None:
    one, other = Digest((1,) * digest.WORDS), Digest((5,) * digest.WORDS)
    assert digest.fold([(1, one), (2, other)], RUN) != digest.fold([(1, other), (2, one)], RUN)
    assert digest.fold([(2, other), (1, one)], RUN) == one * H + other * (H * H)
    assert digest.fold([(1, one)], "another") != digest.fold([(1, one)], RUN)


@pytest.mark.parametrize(
    ("phase", "epoch", "dealt"),
    [
        ("train", 1, (0, 4)),
        ("train", 2, (7, 1)),
        ("train", 3, (0, 1)),
        ("train", 4, (0, 6)),
        ("train", 9, (0, 6)),
        ("test", 1, (0, 4)),
        ("test", 2, (0, 1)),
        ("test", 4, (0, 6)),
    ],
)
def test_where_an_epoch_was_dealt_for_the_last_time(phase: str, epoch: int, dealt: tuple[int, int]) -> None:
    worlds = [(1, 0, 4), (2, 3, 2), (2, 7, 1), (4, 0, 6)]
    assert summary(phase, 9, worlds=worlds).dealt(phase, epoch) == dealt
    other = summary(phase, 9, worlds=[(1, 0, 8)], own=worlds)
    assert other.dealt(phase, epoch) == (dealt if phase == "train" or epoch != 2 else (7, 1))


def test_a_phase_states_its_worlds_where_they_are_not_those_of_the_run() -> None:
    lines = everything({"train": 3, "test": 3, "more": 1})
    worlds = [(1, 0, 4), (2, 9, 3)]
    stated = {"train": worlds, "test": [(1, 0, 4), (2, 0, 3)], "more": [(1, 0, 4), (2, 0, 9)]}
    same = run_summary.line(lines, worlds, None, 0, stated)
    assert same == run_summary.line(lines, worlds, None, 0)
    assert not any("worlds" in phase for phase in same["phases"].values())
    other = run_summary.line(lines, worlds, None, 0, {"test": [(1, 0, 4), (2, 7, 3), (4, 0, 1)]})
    assert other["worlds"] == [[1, 0, 4], [2, 9, 3]]
    assert [phase.get("worlds") for phase in other["phases"].values()] == [None, [[1, 0, 4], [2, 7, 3]], None]
    later = run_summary.line(lines, worlds, None, 0, {"test": [(1, 0, 4), (3, 0, 3)]})
    assert later["phases"]["test"]["worlds"] == [[1, 0, 4], [3, 0, 3]]


@given(courses(), st.data())
def test_a_line_that_is_made_can_be_read(train_state: tuple[int, int, list[World]], data: st.DataObject) -> None:
    n, _, worlds = train_state
    plan = {"train": data.draw(st.integers(0, 3)), "mine": data.draw(st.integers(0, 3)), "test": 1}
    lines = everything(plan, n)
    of_phases = {phase: worlds for phase in plan if data.draw(st.booleans())}
    made = run_summary.line(lines, worlds, None, 0, of_phases)
    assert RunSummary.parse(made).printed() == made
    read = RunSummary.parse(made)
    for phase in read.phases:
        for epoch in range(1, plan[phase] + 1):
            resumes = phase == "train" or phase in of_phases
            start, ranks = read.dealt(phase, epoch)
            place = max(world[:2] for world in worlds if world[0] <= epoch)
            assert start == (place[1] if resumes and place[0] == epoch else 0)
            assert ranks == next(world[2] for world in worlds if world[:2] == place)


@pytest.mark.cold
def test_it_needs_no_torch() -> None:
    script = "import sys; from torchtally.proof import run_summary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
