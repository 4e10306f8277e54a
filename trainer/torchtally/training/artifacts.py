"""The artifacts of a finished training: the model, the proof and the last line; a restarted pod recognizes them."""

import errno
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from torchtally import events
from torchtally.accounting.proofs import kept_lines, proof_file
from torchtally.accounting.proofs.printing import emit
from torchtally.atomic_file import clear, replace
from torchtally.environment import pod_name
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.options import Training
from torchtally.proof import statement
from torchtally.proof.line import PREFIX
from torchtally.proof.statement import Statement
from torchtally.training import checkpoint_file
from torchtally.training.task import Task
from torchtally.training.train_state import TrainState

MODEL, PROOF = "model.pt", proof_file.NAME
EPOCHS = "option epochs"  # a fact of a training
_FULL = (errno.ENOSPC, errno.EDQUOT)


def training(task: str, chosen: Training, fingerprint: str) -> dict[str, Any]:
    """The facts that identify a training, at any number of ranks."""
    of_options = {
        name if name == "seed" else f"option {name}": value for name, value in chosen.training_options().items()
    }
    return {"task": task, "data": fingerprint, **of_options}


def prepare(output: Path) -> None:
    """Make the output folder and check that it is writable. Raises Refused."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=output):  # without a name, so that a kill leaves nothing
            pass
    except OSError as error:
        if error.errno not in _FULL:  # space may be free again when the model is written
            raise Refused(
                f"the output folder {output} (--output, TORCHTALLY_OUTPUT) cannot be written: {error}"
            ) from None


def write(
    train_state: TrainState,
    task: Task,
    output: Path,
    facts: Mapping[str, Any],
    checkpoint: tuple[str, str] | None = None,
) -> None:
    """Write the model, the task's own files and then the proof, each atomically; print the last line.

    Reports that the run is complete. `checkpoint`: path or URL, and SHA-256, of the one with the same weights. Raises
    OSError.
    """
    model = checkpoint_file.serialize({name: value.cpu() for name, value in train_state.model.state_dict().items()})
    files = {MODEL: model, **task.files(train_state.model)}
    hashes = {name: hashlib.sha256(contents).hexdigest() for name, contents in files.items()}
    hashed = f"sha256:{hashes[MODEL]}"
    last = train_state.last_line(hashed)
    lines = kept_lines.lines(last["run"], train_state.lines)
    clear(output, [*files, PROOF])
    for name, contents in files.items():
        replace(output / name, contents)
    epochs = [asdict(epoch) for epoch in train_state.epochs]
    if checkpoint and Path(checkpoint[0]).is_relative_to(output):
        checkpoint = Path(checkpoint[0]).relative_to(output).as_posix(), checkpoint[1]
    proof_file.write(output / PROOF, hashes, lines, last, checkpoint=checkpoint, training=facts, epochs=epochs)
    others = "".join(f", {output / name}" for name in files if name != MODEL)
    log.info(f"wrote {output / MODEL} ({hashed}){others} and {output / PROOF}")
    emit(last)
    events.emit(events.Complete(model=hashed, output=str(output)), train_state.run.source)


def refuse_another(facts: Mapping[str, Any], output: Path) -> None:
    """Raise Refused if `output` has the proof of a training with other facts, whose model would be replaced."""
    try:
        before = Statement.parse((output / PROOF).read_bytes()).predicate.training or {}
        other = next((name for name, value in facts.items() if before[name] != value), None)
    except (OSError, ValueError, LookupError):
        return
    if other:
        raise Refused(
            f"the model in {output} is of another training: its {other} is {json.dumps(before[other])} and now it is "
            f"{json.dumps(facts[other])}; go on as before, or choose another --output"
        )


def is_complete(task: str, chosen: Training, fingerprint: str, output: Path) -> bool:
    """Whether this training is complete in `output`; if so, print its last line again.

    A restarted master, whose workers have succeeded, would wait for them for ever.
    """
    facts = training(task, chosen, fingerprint)
    try:
        proof = Statement.parse((output / PROOF).read_bytes())
        whole = all(statement.sha256_of(output / name)[1] == found for name, found in proof.files.items())
        last = json.loads(proof.predicate.lines[-1].removeprefix(PREFIX))
    except (OSError, ValueError):
        return False
    if not whole or proof.predicate.training != facts:
        return False
    log.info(f"run {last['run']} in {output} is complete; another training needs another --output")
    emit(last)
    source = events.Source(pod=pod_name(), run=last["run"], attempt=last["attempt"])
    events.emit(events.Complete(model=last["model"], output=str(output)), source)
    return True


def sha256(data: bytes) -> str:
    """The hash of a model's bytes in the form of the last line."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
