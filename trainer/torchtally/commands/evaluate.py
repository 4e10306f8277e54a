"""One rank of `torchtally evaluate`: a model that was saved, on all test samples, exactly. See train.py for training.

Rank 0 alone needs the file: it reads it and hands the weights to all.
"""

import json
import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from torchtally import events, tasks
from torchtally.accounting.evaluation import Evaluation
from torchtally.accounting.tally import Run, emit
from torchtally.atomic_file import replace
from torchtally.commands.setup import set_up
from torchtally.distributed import process_group
from torchtally.environment import Places
from torchtally.errors import Refused, Volume
from torchtally.options import Training
from torchtally.pod.failure import exit_rank
from torchtally.proof import run_summary, table
from torchtally.training import artifacts, checkpoint_file, loop
from torchtally.training.artifacts import MODEL, sha256
from torchtally.training.checkpointer import FOLDER

EVALUATION = "evaluation.json"


@dataclass(frozen=True)
class Saved:
    """What is evaluated."""

    path: Path
    weights: dict[str, Tensor]
    sha256: str | None  # of a model.pt; a checkpoint holds more than the model


def main() -> int:
    """Evaluate as sys.argv says and return the exit code."""
    arguments = tasks.parser("evaluate").parse_args()
    return process_group.exit_code(lambda: _run(arguments.task, tasks.chosen(arguments), arguments.checkpoint))


def _run(name: str, chosen: Training, path: Path) -> None:
    output = chosen.output or Places.from_env(os.environ).output
    model = tasks.load(name).model(chosen)
    saved: Saved | None = None

    def load() -> None:
        nonlocal saved
        artifacts.prepare(output)
        saved = find(path)
        if wrong := misfit(saved.weights, model):
            made = " ".join(f"--{option} {value}" for option, value in chosen.of_model().items())
            raise Refused(f"--checkpoint {saved.path} is no model of {f'{name} {made}'.strip()}: {wrong}")
        model.load_state_dict(saved.weights)

    facts = {"checkpoint": str(path), "options": {**chosen.of_model(), "tally": chosen.tally}}
    met = set_up(name, chosen.data, facts, load)
    for value in model.state_dict().values():  # the model's own memory
        dist.broadcast(value, src=0)
    run = Run(
        run=met.run,
        attempt=met.process.attempt,
        pod=met.process.pod,
        task=name,
        plan={"test": 1},
        rank=met.process.rank,
        world=met.process.world,
        seed=chosen.seed,
        data=met.task.fingerprint,
    )
    found, line = loop.examine(
        met.task, model.to(met.device), met.test.to(met.device), run, 1, chosen.tally, first=True
    )
    if saved:
        _write(found, line, saved, output)
        events.emit(events.Complete(model=saved.sha256, output=str(output)), run.source)
    dist.barrier()  # nobody is done before it is written


def find(path: Path) -> Saved:
    """What `path` names: a model, a checkpoint, or a folder with either. Raises Refused, and Volume."""
    try:
        if path.is_dir():
            return _find_in(path)
        data = path.read_bytes()
        payload, wrong = checkpoint_file.verify(path, data)
        if payload is not None:
            return Saved(path, checkpoint_file.load(payload)["model"], None)
        if path.suffix == checkpoint_file.SUFFIX:
            raise Refused(f"--checkpoint {path} is {wrong}")
        weights = checkpoint_file.load(data)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise Refused(f"--checkpoint {path} cannot be read: {error.strerror}") from None
    except OSError as error:
        raise Volume(f"--checkpoint {path} cannot be read: {error}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError):
        raise Refused(f"--checkpoint {path} is no model that torch.save has made of tensors alone") from None
    return Saved(path, weights, sha256(data))


def _find_in(folder: Path) -> Saved:
    if (folder / MODEL).exists():
        return find(folder / MODEL)
    for place in (folder / FOLDER, folder):
        found = checkpoint_file.newest(place, clear=False)  # a training may be writing there
        for sentence in found.skipped:
            print(f"torchtally: {sentence}", file=sys.stderr, flush=True)
        if found.payload and found.path:
            return Saved(found.path, checkpoint_file.load(found.payload)["model"], None)
    raise Refused(f"--checkpoint {folder} has neither {MODEL} nor a whole checkpoint")


def misfit(weights: Any, model: nn.Module) -> str | None:
    """Why these weights are not this model's, if they are not."""
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        return "it is no dictionary of tensors"
    wanted = model.state_dict()
    if missing := wanted.keys() - weights.keys():
        return f"it has no {min(missing)}"
    if more := weights.keys() - wanted.keys():
        return f"it has {min(more, key=str)}, which the model has not"
    for name, value in wanted.items():
        if weights[name].shape != value.shape:
            return f"its {name} has the shape {tuple(weights[name].shape)} and the model's has {tuple(value.shape)}"
    return None


def _write(found: Evaluation, line: dict[str, Any], saved: Saved, output: Path) -> None:
    """Say what came of it, write it, and print the last line. Raises Volume."""
    last = run_summary.line([line], [(1, 0, line["world"])], saved.sha256, 0)
    correct, count = int(found.totals["correct"]), found.count
    evaluation = {
        "holds": not table.wrong(line),
        "checkpoint": str(saved.path),
        "model": saved.sha256,
        "loss": found.mean("loss"),
        "accuracy": correct / count,
        "correct": correct,
        "count": count,
        "lines": [line, last],
    }
    try:
        replace(output / EVALUATION, (json.dumps(evaluation, indent=1) + "\n").encode())
    except OSError as error:
        raise Volume(f"{output / EVALUATION} cannot be written: {error}") from None
    named = f" ({saved.sha256})" if saved.sha256 else ""
    print(
        f"{saved.path}{named}: test loss {found.mean('loss'):.4f}, test accuracy {correct / count:.2%} "
        f"({correct} of {count})\ntorchtally: wrote {output / EVALUATION}",
        flush=True,
    )
    emit(last)


if __name__ == "__main__":
    exit_rank(main())
