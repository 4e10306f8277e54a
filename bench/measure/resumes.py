"""Trainings of users that are killed in the middle of an epoch and started again: two Markdown tables.

python -m bench.measure.resumes

The first has the scripts of examples/, and the same without torchtally, which go on by means of their library, or by
code of their own. The second has libraries with other settings. There, row i of a parameter counts how often sample i
is in the weights: an embedding, SGD, learning rate 1.
"""

import difflib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from pydoc_data.topics import topics

from bench import machine
from bench.markdown import markdown
from bench.measure import lineage
from bench.peers import resumes as counted
from torchtally import events

ROOT = Path(__file__).parents[2]
EXAMPLES, WITHOUT = ROOT / "examples", ROOT / "examples/without"
_PACKAGES = ("torch", "lightning", "transformers", "accelerate", "torchdata", "mosaicml-streaming")
_GPT = ("--text", "text.txt", "--steps", "150", "--batch", "4", "--length", "16", "--width", "16", "--save-every")


@dataclass(frozen=True)
class User:
    """A script, in which steps its last rank dies, and the file of a whole checkpoint where a time says when it is."""

    title: str
    script: str
    kills: tuple[int, ...]
    ours: tuple[str, ...] = ()  # options of the script of examples/
    theirs: tuple[str, ...] = ()
    waits_for: str = field(default="", kw_only=True)


# No step is one after which rank 0 alone saves: the rank that dies in it would not know of these weights.
USERS = [
    User("GPT under FSDP2", "gpt.py", (45, 52, 60), (*_GPT, "0.1"), (*_GPT, "8"), waits_for="manifest.json"),
    User("Hugging Face Trainer", "hf_trainer.py", (17, 34, 47)),
    User("Accelerate", "accelerate_loop.py", (15, 31, 50)),
    User("Lightning", "lightning_fit.py", (35, 50, 77)),
    User("MDS", "mds.py", (35, 85, 140), ("--save-every", "0.1"), ("--save-every", "15"), waits_for="manifest.json"),
    User("StatefulDataLoader", "stateful_loader.py", (35, 50, 77)),
]


@dataclass(frozen=True)
class Outcome:
    """Of a training that was killed."""

    lost: int
    duplicated: int
    same: bool  # its weights are those of an undisturbed one, bit for bit
    log: str  # of both starts


def outcomes(user: User, ours: bool) -> Iterator[Outcome]:
    """Of a user's script, killed in each of the steps, with or without torchtally."""
    with tempfile.TemporaryDirectory() as temporary:
        undisturbed = Path(temporary) / "undisturbed"
        _start(user, ours, undisturbed, 0)
        planned, ends = lineage.in_weights(undisturbed / "notes"), lineage.weights(undisturbed / "notes")
        for step in user.kills:
            folder = Path(temporary) / f"killed-in-{step}"
            log = _start(user, ours, folder, step)
            before = lineage.length(folder / "notes")
            log += _start(user, ours, folder, 0)
            if lineage.length(folder / "notes") >= before + lineage.length(undisturbed / "notes"):
                raise RuntimeError(f"{user.script} has begun anew after it was killed in step {step}:\n{log}")
            lost, duplicated = lineage.lost_and_duplicated(lineage.in_weights(folder / "notes"), planned)
            yield Outcome(lost, duplicated, lineage.weights(folder / "notes") == ends, log)


def _start(user: User, ours: bool, folder: Path, dies_in: int) -> str:
    """What two ranks printed: all of it if they are not to die, or until one did."""
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text("\n".join(topics.values())[:8000])
    script = [str((EXAMPLES if ours else WITHOUT) / user.script), "--output", "checkpoints"]
    script += user.ours if ours else user.theirs
    ranks = ["torchtally.cli", "run", "--", sys.executable] if ours else [*_TORCHRUN]
    waits_for = user.waits_for if ours else ""
    return launched([*ranks, "-m", "bench.peers.watched", *script], folder, dies_in, waits_for)


_TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def launched(module: list[str], folder: Path, dies_in: int, waits_for: str = "") -> str:
    """What a module printed on two ranks in a folder, under `bench.peers.watched`.

    Raises:
        RuntimeError: It did not end as it was to.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_", "TORCH"))}
    own = {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PET_NPROC_PER_NODE": "2",
        "HF_HUB_OFFLINE": "1",
        "TORCHTALLY_OUTPUT": str(folder / "output"),
        "WATCHED_NOTES": str(folder / "notes"),
        "WATCHED_DIES_IN": str(dies_in),
        "WATCHED_WAITS_FOR": waits_for,
    }
    command = [sys.executable, "-m", *module]
    ended = subprocess.run(command, cwd=folder, env=kept | own, capture_output=True, text=True)
    as_planned = (folder / "notes/killed").exists() if dies_in else ended.returncode == 0
    if not as_planned:
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def verified(log: str) -> bool:
    """Whether the verifier accepts the log of all starts, of which the last has gone on in the middle of an epoch."""
    resumed = [record.event for record in events.in_lines(log.splitlines()) if isinstance(record.event, events.Resumed)]
    if not resumed or not resumed[-1].position:
        raise RuntimeError(f"the training has not gone on in the middle of an epoch:\n{log}")
    command = [sys.executable, str(ROOT / "scripts/verify_shards.py"), "-"]
    judged = subprocess.run(command, input=log, capture_output=True, text=True)
    return judged.returncode == 0 and "✓ the proof holds" in judged.stdout


def difference(script: str) -> list[str]:
    """Lines of a script of examples/ after " " or "+", and those of the same without torchtally after "-".

    Indentation, empty lines, and the text at the top do not count.
    """
    before, after = (_code(folder / script) for folder in (WITHOUT, EXAMPLES))
    hunks = difflib.unified_diff(before, after, n=len(before), lineterm="")
    return [line for line in hunks if not line.startswith(("---", "+++", "@@"))]


def _code(path: Path) -> list[str]:
    _, _, code = path.read_text().removeprefix('"""').partition('"""\n')
    return [line.strip() for line in code.splitlines() if line.strip()]


def users() -> Iterator[str]:
    """The lines of the first table."""
    header = ["training", "lines", "without: lost, duplicated", "same weights"]
    header += ["with: lost, duplicated", "same weights", "verified"]
    yield from markdown(header, [])
    for user in USERS:
        marks = [line[0] for line in difference(user.script)]
        cells = [user.title, f"+{marks.count('+')} −{marks.count('-')}"]
        for ours in (False, True):
            found = list(outcomes(user, ours))
            cells += [_counts(found), _share(each.same for each in found)]
        yield from markdown(header, [[*cells, _share(verified(each.log) for each in found)]])[2:]


def _counts(found: list[Outcome]) -> str:
    """`0, 0`, or of each run where they differ."""
    return "; ".join(dict.fromkeys(f"{each.lost:,}, {each.duplicated:,}" for each in found))


def _share(held: Iterable[bool]) -> str:
    each = list(held)
    return f"{sum(each)} of {len(each)}"


def libraries() -> Iterator[str]:
    """The lines of the second table."""
    header = ["resume of", f"samples lost, of {counted.N}", "samples duplicated"]
    yield from markdown(header, [])
    for way, title in counted.WAYS.items():
        with tempfile.TemporaryDirectory() as temporary:
            times = counted_times(way, Path(temporary))
        lost, duplicated = (sum(max(0, sign * (counted.EPOCHS - each)) for each in times) for sign in (1, -1))
        yield from markdown(header, [[title, str(lost), str(duplicated)]])[2:]


def counted_times(way: str, folder: Path) -> list[int]:
    """How often each sample is in the weights of a training that was killed once, by the parameter that counts."""
    for dies_in in (counted.LAST * counted.STEPS + 23, 0):  # after the checkpoint
        launched([*_TORCHRUN, "-m", "bench.peers.watched", counted.__file__, way, "--output", "."], folder, dies_in)
    times: list[int] = json.loads((folder / "times.json").read_text())
    return times


def main() -> None:
    for table in (users, libraries):
        for line in table():
            print(line, flush=True)
        print()
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    described = machine.describe()
    print(
        f"{described['processor']}, {described['cores']} cores; python {python_version()}, {packages}; "
        f"commit {machine.commit()}."
    )


if __name__ == "__main__":
    main()
