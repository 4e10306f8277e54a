"""The page of a finished training, beside its proof, from what rank 0 knows."""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchtally import events
from torchtally.log import log
from torchtally.page import document
from torchtally.proof.line import to_text
from torchtally.record.record import Record
from torchtally.verifier.log import Log
from torchtally.verifier.verdict import judge

REPORT = "report.html"


def write(lines: Iterable[Mapping[str, Any]], last: Mapping[str, Any], facts: Mapping[str, Any], output: Path) -> None:
    """Write the page of the run with these lines and this last line.

    Raises nothing: the training is complete, and its proof is written. What fails is reported.
    """
    path = output / REPORT
    try:
        tallies = [to_text(line) for line in (*lines, last)]
        read, record = Log(), Record()
        read.read("rank 0", io.StringIO("\n".join(tallies)))
        for text in (*tallies, *events.emitted):
            record.add(last["pod"], text)
        [verdict] = judge(read)
        document.write(record.snapshot, verdict, path, facts, alone=True)
        log.info(f"wrote {path}")
    except Exception as error:
        log.warning(f"the report cannot be written to {path}: {error}")
