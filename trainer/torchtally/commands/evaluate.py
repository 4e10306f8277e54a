"""The evaluation of a saved model on all test samples, each exactly once, on one rank.

Only rank 0 reads the file; it broadcasts the weights.
"""

import hashlib
import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchtally import events, standard_output, tasks
from torchtally.accounting.evaluation import Evaluation, evaluate
from torchtally.accounting.ledger.state import PhaseState
from torchtally.accounting.ledger.tally import Phase, Run, Tally
from torchtally.accounting.order.schedule import Schedule
from torchtally.accounting.proofs.last_line import summary_of
from torchtally.accounting.proofs.printing import emit
from torchtally.accounting.proofs.proving import enforce, prove
from torchtally.atomic_file import replace
from torchtally.checkpoints import checkpoint_file
from torchtally.commands.load import load_task
from torchtally.distributed import preflight, process_group
from torchtally.environment import Places
from torchtally.errors import Refused, Volume
from torchtally.log import log
from torchtally.options import Training
from torchtally.pod.failure import exit_rank
from torchtally.proof import table
from torchtally.training import artifacts, loop
from torchtally.training.artifacts import MODEL, sha256_text
from torchtally.training.loop import FOLDER
from torchtally.training.setup import set_up
from torchtally.training.task import Samples, Task
from torchtally.training.weights import mismatch

EVALUATION = "evaluation.json"


@dataclass(frozen=True)
class SavedModel:
    """A model's weights and the file that has them."""

    path: Path
    weights: dict[str, Tensor]
    sha256: str | None  # None for a checkpoint, which holds more than the model


def main() -> int:
    """Evaluate with the options in sys.argv, and return the exit code."""
    arguments = tasks.parser("evaluate").parse_args()
    return process_group.run(lambda: _run(arguments.task, tasks.options_of(arguments), arguments.checkpoint))


def _run(name: str, options: Training, path: Path) -> None:
    output = options.output or Places.from_env(os.environ).output
    task = load_task(name, options)
    model = task.model(options)
    saved: SavedModel | None = None

    def load() -> None:
        nonlocal saved
        artifacts.prepare(output)
        saved = find(path)
        if difference := mismatch(saved.weights, model.state_dict()):
            command = " ".join([name, *(f"--{option} {value}" for option, value in options.model_options().items())])
            raise Refused(f"--checkpoint {saved.path} is no model of {command}: {difference}")
        model.load_state_dict(saved.weights)

    facts = {"checkpoint": str(path), "options": options.model_options()}
    context = set_up(task, options.data, facts, load)
    for value in model.state_dict().values():  # tensors that share the model's memory
        dist.broadcast(value, src=0)
    process, n = context.process, len(context.test)
    preflight.run(process, context.device)
    run = Run(
        run=context.run,
        began=context.began,
        attempt=process.attempt,
        pod=process.pod,
        task=name,
        plan={"test": 1},
        rank=process.rank,
        world=process.world,
        seed=options.seed,
        data=task.fingerprint,
    )
    batch = loop.EVALUATION_BATCH * run.world
    tally = Tally(run, Phase(name="test", epoch=1, n=n, batch=batch, contract="exact", order="sequential"))
    found = evaluate(model.to(context.device), _taken(task, context.test.to(context.device), tally), n)
    proof = prove(tally)
    enforce(proof, first=True)
    line = proof.lines[-1]
    if saved:
        _write(found, line, run, saved, output)
        events.emit(events.Complete(model=saved.sha256, output=str(output)), run.source)
    dist.barrier()  # no rank ends before rank 0 has written the result


def _taken(task: Task, test: Samples, tally: Tally) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
    """Yield the test samples of this rank, and record them once they are evaluated."""
    for indices in Schedule(tally.shard, tally.phase.batch).arrays():
        chosen = torch.from_numpy(indices)
        yield chosen, loop.rows(task, test, chosen)
        tally.record(indices)


def find(path: Path) -> SavedModel:
    """The model, or that of the checkpoint, at `path` or in the folder `path`. Raises Refused and Volume."""
    try:
        if path.is_dir():
            return _find_in(path)
        data = path.read_bytes()
        payload, damage = checkpoint_file.verify(path, data)
        if payload is not None:
            return _in_checkpoint(path, payload)
        if path.suffix == checkpoint_file.SUFFIX:
            raise Refused(f"--checkpoint {path} is {damage}")
        weights = checkpoint_file.load(data)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise Refused(f"--checkpoint {path} cannot be read: {error.strerror}") from None
    except OSError as error:
        raise Volume(f"--checkpoint {path} cannot be read: {error}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError):
        raise Refused(
            f"--checkpoint {path} must be a dictionary of tensors, written by torch.save, as model.pt is"
        ) from None
    return SavedModel(path, weights, sha256_text(hashlib.sha256(data).hexdigest()))


def _in_checkpoint(path: Path, payload: bytes) -> SavedModel:
    """The model of a checkpoint, of a task or of a user's loop. Raises Refused if it has none."""
    objects = checkpoint_file.load(payload)["objects"]
    if "model" not in objects:
        raise Refused(f"--checkpoint {path} has no object named model, but {', '.join(objects)}")
    return SavedModel(path, objects["model"], None)


def _find_in(folder: Path) -> SavedModel:
    if (folder / MODEL).exists():
        return find(folder / MODEL)
    for place in (folder / FOLDER, folder):
        found = checkpoint_file.newest(place, clear=False)  # a training can be writing there
        for sentence in found.skipped:
            log.warning(f"skipped {sentence}")
        if found.payload and found.path:
            return _in_checkpoint(found.path, found.payload)
    raise Refused(f"--checkpoint {folder} has neither {MODEL} nor an intact checkpoint: give a training's --output")


def _write(found: Evaluation, line: dict[str, Any], run: Run, saved: SavedModel, output: Path) -> None:
    """Write the result, and print it and the last line. Raises Volume."""
    begun = PhaseState.beginning(n=line["n"], contract=line["contract"], order=line["order"], data=line["data"])
    examined = begun.shared_out(1, 0, run.world).after(line)
    last = summary_of(run, {"test": examined}, None, (), 0, saved.sha256).printed()
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
    standard_output.write(
        f"{saved.path}{named}: test loss {found.mean('loss'):.4f}, test accuracy {correct / count:.2%} "
        f"({correct} of {count})"
    )
    log.info(f"wrote {output / EVALUATION}")
    emit(last)


if __name__ == "__main__":
    exit_rank(main())
