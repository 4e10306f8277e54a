"""What pods report to programs: the events of real runs keep to their schema, and what does not is no event."""

import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import jsonschema
import launched
import msgspec
import proofs
import psutil
import pytest

from torchtally import events

SCHEMA = Path(__file__).parents[3] / "docs/reference/events.schema.json"
SECRET = "hunter2"
Kind = TypeVar("Kind", bound=events.Event)

SOURCE = events.Source(pod="demo-master-0", rank=0, run="3f9c2a7b10de", attempt=1)
EXAMPLES: list[events.Event] = [
    events.Started(
        node_rank=0,
        min_pods=2,
        max_pods=2,
        processes=1,
        threads=1,
        torchtally="0.1.0",
        torch="2.14.1",
        python="3.13.1",
    ),
    events.Rendezvous(pods=2),
    events.Data(train=60000, test=10000, seconds=0.5),
    events.Preflight(
        node="a", matrix=1e9, bandwidth=1e8, latency=1e-4, all_reduce_bandwidth=None, all_reduce_latency=None, slow=None
    ),
    events.Begun(task="fashion-mnist", world=2),
    events.Resumed(task="fashion-mnist", world=2, checkpoint="/output/a", epoch=2, position=0, discarded=0),
    events.Step(epoch=1),
    events.Progress(
        phase="train",
        epoch=1,
        epochs=2,
        step=3,
        steps=9,
        samples_per_second=1e4,
        loss=None,
        seconds_left=2.5,
        timed_steps=3,
        data_wait=0.25,
        compute=0.5,
        communication=0.0,
    ),
    events.Straggler(slow="demo-worker-0", slow_rank=1, loses_in="data_wait", seconds=0.5, others=None),
    events.Saved(path="/output/a", epoch=1, position=0, seconds=0.25),
    events.SaveFailed(epoch=1, position=0, cause="[Errno 28] No space left on device"),
    events.Proved(phase="train", epoch=1, holds=True),
    events.Epoch(epoch=1, loss=0.5, test_loss=None, test_accuracy=0.75, tested=4, samples_per_second=1e6),
    events.Stopped(signal=15, saved=True, epoch=1, position=250),
    events.WriteFailed(output="/output", cause="[Errno 28] No space left on device"),
    events.Complete(model=None, output="/output"),
    events.Stuck(seconds=240.0, stands="rank 1 stands in load (data.py:7)", stacks="/output/stacks-demo-worker-0.txt"),
    events.Continued(),
    events.Observed(
        of_rank=1, loader="train.py:41 (Points)", phase="train", number=2, samples=30, batches=3, whole=True
    ),
    events.Ended(code=0, kind=None, cause=None),
]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))


def line(event: events.Event, monkeypatch: pytest.MonkeyPatch, source: events.Source = SOURCE) -> str:
    """As it is printed."""
    printed = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", printed)
        patch.setattr("sys.stderr", printed)
        events.emit(event, source)
    (found,) = printed.getvalue().splitlines()
    return found


def values(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.removeprefix(events.PREFIX))
    return found


def test_the_schema_of_the_documentation_is_the_classes() -> None:
    """`make docs` writes it."""
    assert json.loads(SCHEMA.read_text()) == events.schema()
    assert {type(each) for each in EXAMPLES} == set(events.KINDS)


each_kind = pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)


@each_kind
def test_what_is_printed_is_read(
    event: events.Event, validator: jsonschema.Draft202012Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = line(event, monkeypatch)
    validator.validate(values(printed))
    for prefix in ("", "[demo-master-0] ", "[pod/demo-master-0/pytorch] ", "2026-01-02T03:04:05.678901234Z stdout F "):
        record = events.read(prefix + printed)
        assert record is not None
        assert (record.event, record.source) == (event, SOURCE)
    assert [events.read(printed[:length]) for length in range(len(printed))] == [None] * len(printed)


def without(printed: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in printed.items() if name not in names}


@each_kind
def test_a_field_that_is_missing_or_of_another_type_makes_no_event(
    event: events.Event, validator: jsonschema.Draft202012Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = values(line(event, monkeypatch))
    added = {each.name for of in (event, SOURCE) for each in msgspec.structs.fields(of) if not each.required}
    for name, value in printed.items():
        mutants = [printed | {name: []}]
        mutants += [] if name in added else [without(printed, name)]
        mutants += [] if isinstance(value, bool) else [printed | {name: True}]
        mutants += [printed | {name: str(value)}] if isinstance(value, int | float) else []
        for mutant in mutants:
            assert not validator.is_valid(mutant), mutant
            assert events.read(events.PREFIX + json.dumps(mutant)) is None, mutant


def test_an_event_of_an_earlier_release_lacks_what_was_added_since(
    validator: jsonschema.Draft202012Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = next(each for each in EXAMPLES if isinstance(each, events.Progress))
    earlier = without(values(line(progress, monkeypatch)), "data_wait", "compute")
    validator.validate(earlier)
    record = events.read(events.PREFIX + json.dumps(earlier))
    assert record is not None and record.event == msgspec.structs.replace(progress, data_wait=None, compute=None)


def test_an_event_of_a_later_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = values(line(events.Rendezvous(pods=2), monkeypatch))
    for other in (printed | {"v": 2}, printed | {"event": "frozen"}, printed | {"event": ["ended"]}, [printed], 1):
        assert events.read(events.PREFIX + json.dumps(other)) is None
    known = events.read(events.PREFIX + json.dumps(printed | {"nodes": 3}))  # a field more
    assert known is not None and known.event == events.Rendezvous(pods=2)
    assert events.read(events.PREFIX + "[" * 100_000) is None
    for time in ("1e400", "NaN", "1e300", "-1e400"):  # a page could not show it
        stated = json.dumps(printed).replace(f'"time": {printed["time"]}', f'"time": {time}')
        assert time in stated and events.read(events.PREFIX + stated) is None


def test_values_that_json_does_not_know_are_null(
    validator: jsonschema.Draft202012Validator, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverged = events.Epoch(
        epoch=1, loss=float("nan"), test_loss=float("inf"), test_accuracy=0.1, tested=10, samples_per_second=1.0
    )
    printed = values(line(diverged, monkeypatch))
    validator.validate(printed)
    assert (printed["loss"], printed["test_loss"]) == (None, None)


def test_a_line_is_of_one_write_and_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr("sys.stdout.write", written.append)
    monkeypatch.setattr("sys.stdout.flush", lambda: None)
    events.emit(events.SaveFailed(epoch=1, position=0, cause="Gerät voll\n\udcff" * 1000), SOURCE)
    (text,) = written
    assert text.isascii() and text.count("\n") == 1 and text.endswith("\n")
    assert len(values(text)["cause"]) == 1000


# A real run.


@pytest.fixture
def two(fashion_mnist: Path, tmp_path: Path) -> Iterator[launched.Job]:
    with launched.job(launched.environment(TORCHTALLY_DATA=str(fashion_mnist), A_TOKEN=SECRET), tmp_path, 2) as job:
        yield job


class Heard:
    """The events of a pod, in the order of its streams."""

    def __init__(self, pod: launched.Pod, validator: jsonschema.Draft202012Validator) -> None:
        self._pod, self._validator = pod, validator
        self.of_rank: list[events.Record] = []

    def until(self, kind: type[Kind]) -> Kind:
        """Read on until the rank reports it."""
        while True:
            line = self._pod.line()
            assert line, f"ended without {kind.__name__}: {self._pod.errors}"
            if (record := self._checked(line)) is not None:
                self.of_rank.append(record)
                if isinstance(record.event, kind):
                    return record.event

    def end(self) -> int:
        """Read all that is left."""
        while line := self._pod.line():
            if (record := self._checked(line)) is not None:
                self.of_rank.append(record)
        return self._pod.wait()

    @property
    def of_entry_point(self) -> list[events.Record]:
        return [record for line in self._pod.errors.splitlines() if (record := self._checked(line))]

    def all(self, kind: type[Kind]) -> list[Kind]:
        found = [record.event for record in self.of_entry_point + self.of_rank]
        return [event for event in found if isinstance(event, kind)]

    def one(self, kind: type[Kind]) -> Kind:
        (found,) = self.all(kind)
        return found

    def _checked(self, line: str) -> events.Record | None:
        assert SECRET not in line
        if not line.startswith(events.PREFIX):
            assert events.PREFIX not in line
            return None
        self._validator.validate(values(line))
        record = events.read(line)
        assert record is not None
        fields = msgspec.structs.asdict(record.source) | msgspec.structs.asdict(record.event)
        assert {"v": 1, "time": record.time, "event": values(line)["event"]} | fields == values(line)
        return record


def test_a_run_that_is_stopped_and_resumed(
    two: launched.Job, tmp_path: Path, validator: jsonschema.Draft202012Validator
) -> None:
    output = tmp_path / "output"
    command = ["run", "fashion-mnist", "--epochs", "2", "--batch-size", "250", "--save-seconds", "0.01"]
    command += ["--hidden", "64", "--output", str(output)]

    pods = two.all(command)
    master, worker = (Heard(pod, validator) for pod in pods)
    assert master.until(events.Begun) == events.Begun(task="fashion-mnist", world=2)
    pods[1].signal(signal.SIGTERM)
    assert [each.end() for each in (master, worker)] == [128 + signal.SIGTERM] * 2
    assert [each.one(events.Started).node_rank for each in (master, worker)] == [0, 1]
    for each in (master, worker):
        assert each.one(events.Started).max_pods == each.one(events.Rendezvous).pods == 2
        assert (each.one(events.Data).train, each.one(events.Data).test) == (60000, 10000)
        assert each.one(events.Ended).code == 128 + signal.SIGTERM
        assert each.of_entry_point[-1].event == each.one(events.Ended)
    assert "demo-worker-0 was stopped by signal 15" in str(worker.one(events.Ended).cause)
    assert worker.one(events.Ended).kind == "known"
    assert master.one(events.Step).epoch == 1
    stopped, saved = master.one(events.Stopped), master.all(events.Saved)[-1]
    assert (stopped.signal, stopped.saved) == (signal.SIGTERM, True)
    assert (stopped.epoch, stopped.position) == (saved.epoch, saved.position)
    assert Path(saved.path).exists()

    again = two.all(command)
    master, worker = (Heard(pod, validator) for pod in again)
    resumed = master.until(events.Resumed)
    assert (resumed.checkpoint, resumed.epoch, resumed.position) == (saved.path, saved.epoch, saved.position)
    if hasattr(psutil, "RLIMIT_FSIZE"):
        (rank,) = (each for each in launched.family(again[0].process.pid) if each.name().startswith("rank "))
        before = rank.rlimit(psutil.RLIMIT_FSIZE)
        rank.rlimit(psutil.RLIMIT_FSIZE, (1 << 16, before[1]))
        assert "File too large" in master.until(events.SaveFailed).cause
        rank.rlimit(psutil.RLIMIT_FSIZE, before)
        master.until(events.Saved)
    assert [each.end() for each in (master, worker)] == [0, 0], again[0].errors
    assert master.one(events.Complete).output == str(output)
    assert master.one(events.Complete).model == proofs.model(output / "proof.json")
    assert [event.epoch for event in master.all(events.Epoch)][-1] == 2
    assert all(proved.holds for proved in master.all(events.Proved))
    assert [each.one(events.Ended) for each in (master, worker)] == [events.Ended(code=0, kind=None, cause=None)] * 2
    of_ranks = [record for record in master.of_rank if not isinstance(record.event, events.Data)]
    first = of_ranks[0].source
    assert {record.source for record in of_ranks} == {
        events.Source(pod="demo-master-0", rank=0, run=first.run, attempt=1, began=first.began)
    }
    reports = [record for record in worker.of_rank if not isinstance(record.event, events.Data)]
    assert {type(record.event) for record in reports} <= {events.Progress}
    assert {(record.source.pod, record.source.rank) for record in reports} <= {("demo-worker-0", 1)}
