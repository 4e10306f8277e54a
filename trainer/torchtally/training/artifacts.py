"""The end of a training: its model, its proof and its last line; and whether a pod finds that it has been reached."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchtally import options
from torchtally.accounting.tally import emit
from torchtally.atomic_file import replace
from torchtally.proof import run_summary, table
from torchtally.training import checkpoint_file, loop
from torchtally.training.train_state import Course

MODEL, PROOF = "model.pt", "proof.json"


def training(task: str, chosen: options.Training, fingerprint: str) -> dict[str, Any]:
    """What makes it the same training, whatever the number of ranks."""
    return {"task": task, "data": fingerprint, **options.identity(chosen)}


def write(course: Course, task: loop.Task, output: Path, facts: Mapping[str, Any]) -> None:
    """Write the model, what the task makes of it, then the proof, each beside its place and renamed.

    Prints the last line. Raises OSError.
    """
    model = checkpoint_file.saved({name: value.cpu() for name, value in course.model.state_dict().items()})
    hashed, files = sha256(model), task.files(course.model)
    last = run_summary.line(course.lines, course.worlds, hashed, course.discarded)
    proof = {
        "holds": not any(table.wrong(line) for line in course.lines),
        "model": hashed,
        "files": {name: sha256(contents) for name, contents in files.items()},
        "training": facts,
        "epochs": [asdict(epoch) for epoch in course.epochs],
        "lines": [*course.lines, last],
    }
    for name, contents in {MODEL: model, **files}.items():
        replace(output / name, contents)
    replace(output / PROOF, (json.dumps(proof, indent=1) + "\n").encode())
    others = "".join(f", {output / name}" for name in files)
    print(f"torchtally: wrote {output / MODEL} ({hashed}){others} and {output / PROOF}", flush=True)
    emit(last)


def told(task: str, chosen: options.Training, output: Path) -> bool:
    """Whether this training is complete in `output`; if so, its last line is printed again.

    The master of a job whose workers have succeeded would wait for them in vain.
    """
    facts = training(task, chosen, loop.task(task).fingerprint)
    try:
        proof = json.loads((output / PROOF).read_bytes())
        written = {MODEL: proof["model"], **proof["files"]}
        whole = all(sha256((output / name).read_bytes()) == hashed for name, hashed in written.items())
        last = proof["lines"][-1]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    if not whole or proof["training"] != facts:
        return False
    print(f"torchtally: run {last['run']} in {output} is complete; another training needs another --output", flush=True)
    emit(last)
    return True


def sha256(data: bytes) -> str:
    """The hash of a model's bytes, as last lines name it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
