"""The table of tasks: what each came to, and where it ran. build/tasks/tasks.jsonl as seen, tasks.md to read.

Whatever ran last stands in the table.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from torchtally import events

FOLDER = Path(__file__).resolve().parents[2] / "build" / "tasks"
WHERE = ("run_local", "docker run", "kind")


@dataclass(frozen=True)
class Task:
    """What is run by 4 ranks, and what has to come of it."""

    args: tuple[str, ...]
    data: str | None  # the dataset
    at_least: float  # of the test samples that it gets right; with less, something is wrong
    samples: tuple[int, int] = (60000, 10000)  # in an epoch's training and in its test

    @property
    def name(self) -> str:
        return " ".join(self.args[1:])


TASKS = [
    Task(("run", "fashion-mnist", "--epochs", "2"), "fashion-mnist", at_least=0.45),
    Task(("run", "mnist-cnn", "--mlflow", "tasks"), "mnist", at_least=0.2),  # in 450 steps
    Task(("run", "keras-mnist"), "mnist", at_least=0.98),
    Task(("run", "image-folder"), "image-folder", at_least=0.6, samples=(1000, 300)),
    Task(("run", "parameter-server"), None, at_least=0.97, samples=(100, 1000)),
    Task(("run", "parameter-server", "--form", "collective"), None, at_least=0.97, samples=(100, 1000)),
]


@dataclass(frozen=True)
class Row:
    """One task, in one place."""

    task: str
    where: str  # one of WHERE
    proof: str  # what verify_shards ends with
    metric: str  # the last one that it printed
    seconds: float


def judged(task: Task, where: str, said: str, verdict: str, seconds: float) -> None:
    """Hold what rank 0 said and the verifier's verdict against what the task has to come to, and note both."""
    proof = verdict.strip().splitlines()[-1]
    assert re.match(r"✓ the proof holds: run \w+, 4 ranks, ", proof)
    reported = [record.event for record in events.in_lines(said.split("\n"))]
    last = [event for event in reported if isinstance(event, events.Epoch)][-1]
    assert last.tested == task.samples[1]
    assert last.test_accuracy >= task.at_least
    record(Row(task.name, where, proof, f"{last.test_accuracy:.2%} of {last.tested}", seconds))


def record(row: Row, folder: Path = FOLDER) -> None:
    """Add what was seen to the table."""
    folder.mkdir(parents=True, exist_ok=True)
    seen = folder / "tasks.jsonl"
    with FileLock(folder / ".lock"):
        with seen.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        rows = {(row.task, row.where): row for row in (Row(**json.loads(line)) for line in seen.open())}
        (folder / "tasks.md").write_text(_markdown(rows))


def _markdown(rows: dict[tuple[str, str], Row]) -> str:
    text = "| task | where | test accuracy | seconds | the proof's last line |\n| --- | --- | ---: | ---: | --- |\n"
    for task in dict.fromkeys(task for task, _ in rows):
        for row in (rows[task, where] for where in WHERE if (task, where) in rows):
            proof = re.sub(r"(sha256:.{8})\w+", r"\1…", row.proof)
            text += f"| `{task}` | {row.where} | {row.metric} | {row.seconds:.0f} | {proof} |\n"
    return text
