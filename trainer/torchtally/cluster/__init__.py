"""The parts of verify_shards around the verifier itself, which is trainer/torchtally/verifier.

cluster        fetches the logs of a job's pods (job_kinds: PyTorchJob and TrainJob; batch_kinds: JobSet and Job)
wait           waits until a job has ended
carried        the volume by which a pod of another's image carries the observer
archived       a proof in place of logs, and the files that it must be of
report         the verdicts as a table or JSON
console        the start and the end of a command-line program
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if not importlib.util.find_spec("torchtally"):  # not installed: take it from this checkout
    sys.path.append(str(Path(__file__).resolve().parents[2] / "trainer"))


@contextmanager
def packages() -> Iterator[None]:
    """Where a program imports; ends it with a sentence if a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        program = Path(sys.argv[0]).stem
        missing = f"the Python package {error.name} is missing"
        print(f"{program}: {missing}: run `make scripts`, then `. .venv/bin/activate`", file=sys.stderr)
        sys.exit(2)
