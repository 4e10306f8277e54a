"""The record of a job: of a real run that is killed and resumed, and of lines that say what is wrong."""

import itertools
import json
import os
import random
import signal
from pathlib import Path

import clean_log
import launched
import msgspec
import pytest
from accounts import run
from hypothesis import given
from hypothesis import strategies as st
from squares import Squares

from torchtally import events
from torchtally.accounting.account import Account
from torchtally.proof.line import PREFIX
from torchtally.record.downsampling import Spread
from torchtally.record.model import EpochProof, Life, Snapshot, State
from torchtally.record.record import Record
from torchtally.record.sentences import duration

ROOT = Path(__file__).parents[3]
PODS = ("demo-master-0", "demo-worker-0")
Logs = dict[str, list[str]]  # lines by pod, of all its starts


def recorded(logs: Logs) -> Record:
    record = Record()
    for pod, lines in logs.items():
        for line in lines:
            record.add_line(pod, line)
    return record


@pytest.fixture(scope="module")
def starts(fashion_mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Logs]:
    """Of a run whose worker is killed after a checkpoint, and that goes on."""
    folder = tmp_path_factory.mktemp("record")
    more = {"TORCHTALLY_DATA": str(fashion_mnist), "TORCHTALLY_PROGRESS_SECONDS": "0.05"}
    command = ["run", "fashion-mnist", "--epochs", "2", "--batch-size", "250", "--save-seconds", "0.01"]
    command += ["--hidden", "64", "--output", str(folder / "out")]
    first, second = Logs(), Logs()
    with launched.job(launched.environment(**more), folder, 2) as job:
        pods = job.all(command)
        begun: list[str] = []
        while not any(_saved_within(line) for line in begun):
            begun.append(pods[0].line())
            assert begun[-1], pods[0].errors
        reported: list[str] = []
        while not any(_is_progress(line) for line in reported):
            reported.append(pods[1].line())
            assert reported[-1], pods[1].errors
        pods[1].kill()
        for pod, name, before in zip(pods, PODS, (begun, reported), strict=True):
            out = [*before, *pod.rest().splitlines()]
            first[name] = [*pod.errors.splitlines(), *out]
        assert [pod.process.returncode for pod in pods] == [203, -signal.SIGKILL]
        again = job.all(command)
        for pod, name in zip(again, PODS, strict=True):
            out = pod.rest().splitlines()
            second[name] = [*pod.errors.splitlines(), *out]
        assert [pod.process.returncode for pod in again] == [0, 0], again[0].errors
    return [first, second]


@pytest.fixture(scope="module")
def logs(starts: list[Logs]) -> Logs:
    return {pod: [line for each in starts for line in each[pod]] for pod in PODS}


def _saved_within(line: str) -> bool:
    """Whether a checkpoint holds a part of the first epoch."""
    record = events.read(line)
    return record is not None and isinstance(record.event, events.Saved) and record.event.position > 0


def _is_progress(line: str) -> bool:
    record = events.read(line)
    return record is not None and isinstance(record.event, events.Progress)


@pytest.fixture(scope="module")
def whole(logs: Logs) -> Snapshot:
    return recorded(logs).snapshot


def test_a_start_that_goes_on_to_the_end_has_a_clean_log(starts: list[Logs]) -> None:
    for lines in starts[1].values():
        clean_log.assert_clean("\n".join(lines))


def test_a_run_that_is_killed_and_resumed(logs: Logs, whole: Snapshot) -> None:
    reported = [record for lines in logs.values() for record in events.in_lines(lines)]
    (resumed,) = (each.event for each in reported if isinstance(each.event, events.Resumed))
    (found,) = whole.runs
    assert (found.state, found.task, found.world) == (State.COMPLETE, "fashion-mnist", 2)
    assert found.plan == {"train": 2, "test": 2}
    assert [(phase.name, phase.n, phase.batch) for phase in found.phases] == [
        ("train", 60000, 500),
        ("test", 10000, 2000),
    ]
    begun, second = found.attempts
    assert (begun.number, begun.resumed, begun.position) == (0, False, 0)
    assert (second.number, second.resumed, second.epoch) == (1, True, resumed.epoch)
    assert (second.position, second.discarded) == (resumed.position, resumed.discarded) != (0, 0)
    assert begun.first and begun.last and second.first and begun.first <= begun.last <= second.first

    assert found.proofs == tuple(
        EpochProof(phase=phase, epoch=epoch, holds=True, superseded=False)
        for epoch in (1, 2)
        for phase in ("train", "test")
    )
    assert [each.epoch for each in found.epochs] == [1, 2]
    assert found.checkpoints[-1].cause is None

    reports = [each for each in found.progress if each.pod == "demo-worker-0"]
    assert {each.attempt for each in reports} == {0, 1} and {each.epochs for each in reports} == {2}
    assert all(0 < each.step <= each.steps and each.samples_per_second > 0 for each in reports)
    assert reports[-1].seconds_left is not None

    master, worker = whole.pods
    assert [pod.name for pod in whole.pods] == [*PODS] and (master.ranks, worker.ranks) == ((0,), (1,))
    assert master.versions.keys() == {"torchtally", "torch", "python"}
    for pod in (master, worker):
        for attempt, life in enumerate(pod.lives):
            assert life.attempt == attempt and life.run == found.id
            moments = (life.started, life.rendezvous, life.data, life.first_step)
            assert sorted(filter(None, moments)) == [*moments]
        assert pod.life.code == 0
    assert (master.lives[0].code, master.lives[0].kind) == (203, "consequence")
    assert (worker.lives[0].code, worker.lives[0].ended) == (None, None)
    assert {restart.pod for restart in whole.restarts} == {*PODS}
    assert {restart.attempt for restart in whole.restarts} == {0}
    msgspec.json.encode(whole)


def in_time(lines: list[str]) -> list[str]:
    """The lines of both streams, as a container's log has them."""
    times = itertools.accumulate((record.time if (record := events.read(line)) else 0.0 for line in lines), _carried)
    return [line for _, line in sorted(zip(times, lines, strict=True), key=lambda each: each[0])]


def _carried(before: float, time: float) -> float:
    return time or before


def test_a_run_is_running_until_its_end(logs: Logs) -> None:
    record, states = Record(), []
    for line in in_time(logs["demo-master-0"]):
        record.add_line("demo-master-0", line)
        if (now := record.snapshot.run) and states[-1:] != [now.state]:
            states.append(now.state)
    assert states == [State.RUNNING, State.STOPPED, State.RUNNING, State.COMPLETE]


@given(st.integers(0, 1 << 30))
def test_lines_that_come_one_by_one_make_the_same_record(logs: Logs, whole: Snapshot, seed: int) -> None:
    """In any order of the pods, and whenever it is looked at."""
    chance = random.Random(seed)
    record, left = Record(), {pod: iter(lines) for pod, lines in logs.items()}
    while left:
        pod = chance.choice([*left])
        for _ in range(chance.randrange(1, 200)):
            if (line := next(left[pod], None)) is None:
                del left[pod]
                break
            record.add_line(pod, line)
        if chance.random() < 0.1:
            assert isinstance(record.snapshot, Snapshot)
    assert record.snapshot == whole


def test_what_stands_before_a_line_and_lines_that_cannot_be_read_change_nothing(logs: Logs, whole: Snapshot) -> None:
    record = recorded({pod: [f"[{pod}] {line}" for line in lines] for pod, lines in logs.items()})
    for line in (f"{PREFIX}{{", f'{PREFIX}{{"v":2}}', events.PREFIX, f"{events.PREFIX}{{}}", "TORCHTALLY is a word"):
        record.add_line("demo-master-0", line)
    assert record.snapshot == whole


def wrong(logs: Logs, rank: int | str, **values: object) -> Logs:
    """With another line of a rank in train epoch 2."""

    def changed(line: str) -> str:
        if line.startswith(PREFIX + "{"):
            found = json.loads(line.removeprefix(PREFIX))
            if (found.get("rank"), found.get("epoch"), found["phase"]) == (rank, 2, "train"):
                return PREFIX + json.dumps(found | values)
        return line

    return {pod: [changed(line) for line in lines] for pod, lines in logs.items()}


@pytest.mark.parametrize("rank", [1, "all"])
@pytest.mark.parametrize(
    "counts", [{"lost": 2, "duplicated": 0}, {"lost": 0, "duplicated": 1}, {"lost": None, "duplicated": None}]
)
def test_a_line_of_lost_or_duplicated_samples_denies_the_proof(
    logs: Logs, rank: int | str, counts: dict[str, int | None]
) -> None:
    found = recorded(wrong(logs, rank, **counts)).snapshot.run
    assert found and [each.holds for each in found.proofs] == [True, True, False, True]


def test_without_the_line_of_all_ranks_nothing_is_said_to_hold(logs: Logs) -> None:
    found = recorded(wrong(logs, "all", v=0)).snapshot.run
    assert found and [each.holds for each in found.proofs] == [True, True, None, True]


def test_what_an_event_says_is_not_outvoted_by_the_lines(logs: Logs) -> None:
    denied = {pod: [line.replace('"holds":true', '"holds":false') for line in lines] for pod, lines in logs.items()}
    found = recorded(denied).snapshot.run
    assert found and {each.holds for each in found.proofs} == {False}


def test_what_a_cluster_says_fills_what_a_pod_could_not(logs: Logs) -> None:
    record = recorded(logs)
    first, second = (life.started for life in record.snapshot.pods[1].lives)
    assert first and second
    killed = Life(
        container=int(first), created=first - 9, scheduled=first - 8, ended=first + 1, code=137, cause="OOMKilled"
    )
    record.add_life("demo-worker-0", killed)
    record.add_life("demo-worker-0", Life(container=int(second), ended=second + 9, code=1, cause="never said"))
    lives = record.snapshot.pods[1].lives
    assert (lives[0].code, lives[0].cause, lives[0].started, lives[0].scheduled) == (137, "OOMKilled", first, first - 8)
    assert (lives[1].code, lives[1].cause) == (0, None)  # its own word
    assert len(lives) == 2
    (restart,) = (each for each in record.snapshot.restarts if each.pod == "demo-worker-0")
    assert (restart.code, restart.cause, restart.time) == (137, "OOMKilled", first + 1)
    record.add_life("demo-worker-1", Life(created=first))
    assert [pod.name for pod in record.snapshot.pods] == [*PODS, "demo-worker-1"]


def test_a_pod_that_is_seen_before_its_container_starts_has_no_life_more(starts: list[Logs]) -> None:
    record = recorded(starts[0])
    (life,) = record.snapshot.pods[1].lives
    assert life.started
    created = life.started - 9
    record.add_life("demo-worker-0", Life(created=created))
    record.add_life("demo-worker-0", Life(created=created, scheduled=created + 1))
    record.add_life("demo-worker-0", Life(created=created, scheduled=created + 1, container=int(life.started)))
    (life,) = record.snapshot.pods[1].lives
    assert (life.created, life.scheduled) == (created, created + 1)
    assert record.snapshot.restarts == ()


def test_logs_that_are_read_again_make_no_restarts(logs: Logs) -> None:
    """As `watch` reads them once the job has ended."""
    record = recorded(logs)
    once = record.snapshot
    for pod, lines in logs.items():
        for line in lines:
            record.add_line(pod, line)
    assert once.restarts and record.snapshot.restarts == once.restarts
    assert [pod.lives for pod in record.snapshot.pods] == [pod.lives for pod in once.pods]


def later(lines: list[str], seconds: float) -> list[str]:
    """By a clock that is so much ahead."""
    found = [(line, events.read(line)) for line in lines]
    return [
        events.line(msgspec.structs.replace(read, time=read.time + seconds)) if read else line for line, read in found
    ]


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
def test_a_clock_that_is_wrong_makes_no_lives(ahead: float, logs: Logs, whole: Snapshot) -> None:
    first, second = (life.started for life in whole.pods[1].lives)
    assert first and second
    known = [
        Life(container=first - 1, created=first - 9, ended=second - 2, code=137, cause="OOMKilled"),
        Life(container=second - 1),
    ]
    found = []
    for lines in (logs["demo-worker-0"], later(logs["demo-worker-0"], ahead)):
        record = recorded(logs | {"demo-worker-0": lines})
        for life in known:
            record.add_life("demo-worker-0", life)
        found.append(record.snapshot)
    right, wrong = found
    assert [(life.code, life.container) for life in wrong.pods[1].lives] == [(137, first - 1), (0, second - 1)]
    assert [(each.pod, each.code) for each in wrong.restarts] == [(each.pod, each.code) for each in right.restarts]
    assert [each.time for each in wrong.restarts] == pytest.approx([each.time for each in right.restarts], abs=5)


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
def test_a_run_goes_on_as_the_clock_of_rank_0_has_it(ahead: float, starts: list[Logs]) -> None:
    record = recorded({pod: later(lines, ahead) for pod, lines in starts[0].items()})
    began = record.snapshot.pods[0].life.started
    assert began
    record.add_life("demo-master-0", Life(container=began - ahead, created=began - ahead - 9, ended=began - ahead + 99))
    assert record.snapshot.run and record.snapshot.run.state == "stopped"


def test_a_container_in_which_a_pod_starts_twice_ends_with_the_last_start(logs: Logs) -> None:
    untold = {pod: [line for line in lines if '"event":"ended"' not in line] for pod, lines in logs.items()}
    record = recorded(untold)
    first = record.snapshot.pods[1].lives[0].started
    assert first
    whole = Life(container=int(first), scheduled=first - 8, ended=first + 999, code=137, cause="OOMKilled")
    record.add_life("demo-worker-0", whole)
    lives = record.snapshot.pods[1].lives
    assert [life.scheduled for life in lives] == [first - 8, None]
    assert [(life.code, life.cause) for life in lives] == [(None, None), (137, "OOMKilled")]


def goes_back() -> None:
    """An attempt that resumes before what another has proved."""
    with Account(task="t", plan={"train": 2}) as account:
        loader = account.loader(Squares(9), "train", batch_size=2)
        for epoch in account.epochs():
            for _ in account.epoch("train", epoch, loader):
                account.commit()


def test_epochs_that_are_made_again_are_superseded() -> None:
    (found,) = run(1, goes_back)
    lines = found["out"].splitlines()
    again = [
        line.replace('"attempt":0', '"attempt":1') for line in lines if '"epoch":2' in line or '"rank"' not in line
    ]
    once = recorded({"pod-0": lines}).snapshot.run
    assert once and [(each.epoch, each.superseded) for each in once.proofs] == [(1, False), (2, False)]
    twice = recorded({"pod-0": [*lines, *again]}).snapshot.run
    assert twice
    assert [(each.epoch, each.superseded) for each in twice.proofs] == [(1, False), (2, True), (2, False)]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.31, "0.31 s"),
        (42.13, "42.1 s"),
        (59.96, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 0 min"),
        (7500, "2 h 5 min"),
        (48 * 3600 - 1, "47 h 59 min"),
        (99 * 3600, "4 days 3 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000, 4097])
def test_a_part_of_a_long_series_is_evenly_spread(count: int) -> None:
    spread: Spread[int] = Spread(8)
    for item in range(count):
        spread.add(item)
    kept = spread.items
    assert kept[0] == 0 and kept[-1] == count - 1 and len(kept) <= 9
    assert kept == sorted({*kept})
    gaps = {later - earlier for earlier, later in itertools.pairwise(kept[:-1])}
    assert len(gaps) <= 1 and len(kept) >= min(count, 4)


def paced() -> None:
    os.environ["TORCHTALLY_PROGRESS_SECONDS"] = "0"
    with Account(task="t", plan={"train": 2, "test": 2}) as account:
        loader = account.loader(Squares(9), "train", batch_size=2)
        tests = account.loader(Squares(9), "test", batch_size=2, trains=False)
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                account.log(loss=batch.step)
                account.commit()
            for _ in account.epoch("test", epoch, tests):
                pass


def test_the_first_rank_of_each_pod_reports_the_progress_of_a_loop() -> None:
    for rank, each in enumerate(run(2, paced)):
        reports = [
            record for record in events.in_lines(each["out"].splitlines()) if isinstance(record.event, events.Progress)
        ]
        assert {(record.source.rank, record.source.pod) for record in reports} == {(rank, f"pod-{rank}")}
        found = [record.event for record in reports if isinstance(record.event, events.Progress)]
        assert [(event.epoch, event.step) for event in found] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
        assert {(event.phase, event.epochs, event.steps) for event in found} == {("train", 2, 3)}
        assert all(event.samples_per_second > 0 for event in found)
        assert found[-1].seconds_left == 0
        assert all((event.loss is None) == (rank > 0) for event in found)  # numbers of rank 0 alone are read


def asks() -> None:
    os.environ["TORCHTALLY_PROGRESS_SECONDS"] = "often"
    Account(task="t", plan={"train": 1}).__enter__()


def test_a_wrong_interval_is_refused_on_all_ranks() -> None:
    for each in run(2, asks):
        assert each["code"] == 2
        assert "TORCHTALLY_PROGRESS_SECONDS='often' must be a number of seconds from 0" in each["err"]
