"""The artifacts of a finished training: the model, the proof and the last line; a restarted pod recognizes them."""

import errno
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from torch import nn

from torchtally import events, exchange
from torchtally.accounting.proofs import kept_lines, proof_file
from torchtally.accounting.proofs.printing import emit_last
from torchtally.atomic_file import clear, replace
from torchtally.environment import pod_name
from torchtally.errors import Refused, Volume
from torchtally.log import log
from torchtally.options import Training
from torchtally.proof import statement
from torchtally.proof.line import PREFIX
from torchtally.proof.statement import Statement
from torchtally.training.results import Epoch
from torchtally.training.task import Task

MODEL, PROOF = "model.pt", proof_file.NAME
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WRITE_TIMEOUT = 240.0  # seconds of retries; less than process_group.COLLECTIVE_TIMEOUT, in which the other ranks wait
_WRITE_INTERVAL = 10  # seconds


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


def write_model(model: nn.Module, task: Task, output: Path, source: events.Source) -> dict[str, str]:
    """Write the model and the task's own files, each atomically; returns their hashes. Raises Volume."""
    weights = exchange.saved({name: value.cpu() for name, value in model.state_dict().items()})
    files = {MODEL: weights, **task.files(model)}

    def write() -> None:
        clear(output, [*files, PROOF])
        for name, contents in files.items():
            replace(output / name, contents)

    _with_retries(write, output, source)
    return {name: hashlib.sha256(contents).hexdigest() for name, contents in files.items()}


def write_proof(
    output: Path,
    hashes: Mapping[str, str],
    last: Mapping[str, Any],
    facts: Mapping[str, Any],
    epochs: Sequence[Epoch],
    source: events.Source,
    checkpoint: Callable[[], tuple[str, str] | None] = lambda: None,
) -> None:
    """Write the proof of the files with these hashes, after them. Raises Volume.

    `checkpoint` returns path or URL, and SHA-256, of the one with the same weights; it can raise OSError.
    """

    def write() -> None:
        found = checkpoint()
        if found and Path(found[0]).is_relative_to(output):
            found = Path(found[0]).relative_to(output).as_posix(), found[1]
        lines, results = kept_lines.lines(last["run"]), [asdict(epoch) for epoch in epochs]
        proof_file.write(output / PROOF, hashes, lines, last, checkpoint=found, training=facts, epochs=results)

    _with_retries(write, output, source)
    others = "".join(f", {output / name}" for name in hashes if name != MODEL)
    log.info(f"wrote {output / MODEL} ({sha256_text(hashes[MODEL])}){others} and {output / PROOF}")


def _with_retries(write: Callable[[], None], output: Path, source: events.Source) -> None:
    """Write, with retries, because the training is complete. Raises Volume."""
    until, told = time.monotonic() + _WRITE_TIMEOUT, ""
    while True:
        try:
            write()
            return
        except OSError as error:
            message = f"the model cannot be written to {output} (--output, TORCHTALLY_OUTPUT): {error}"
            events.emit(events.WriteFailed(output=str(output), cause=str(error)), source)
            if time.monotonic() > until:
                raise Volume(message) from None
        if message != told:
            told = message
            log.warning(f"{message}; trying again every {_WRITE_INTERVAL} s, for {until - time.monotonic():.0f} s")
        time.sleep(_WRITE_INTERVAL)


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
    emit_last(last)
    source = events.Source(pod=pod_name(), run=last["run"], attempt=last["attempt"], began=last["began"])
    events.emit(events.Complete(model=last["model"], output=str(output)), source)
    return True


def sha256_text(hexdigits: str) -> str:
    """The hash of a model's file in the form of the last line."""
    return f"sha256:{hexdigits}"
