"""Runs small trainings on real ranks that the observer sees, and judges their lines.

Ranks are processes of their own that meet over gloo. A program is a text that uses the names of `training`.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ranks import free_port

from torchtally.observed import judge
from torchtally.observed.judge import Observation
from torchtally.observed.line import Handed

HERE = Path(__file__).parent
_BEGIN = "import torch\nfrom torchtally_observer import start\nstart.start()\nfrom training import *\n"


@dataclass(frozen=True)
class Ended:
    """A program that has ended on all ranks."""

    codes: list[int]
    out: str
    err: str

    @property
    def lines(self) -> judge.Lines:
        lines = judge.Lines()
        for number, text in enumerate(self.err.splitlines(), 1):
            lines.add(text, f"line {number}")
        return lines

    @property
    def handed(self) -> list[Handed]:
        return [*self.lines.handed.values()]

    @property
    def observation(self) -> Observation:
        found = judge.judge(self.lines)
        assert found, self.err
        return found

    @property
    def faults(self) -> list[str]:
        return self.observation.faults

    @property
    def notes(self) -> list[str]:
        return [*self.observation.notes, *self.observation.remarks]

    @property
    def right(self) -> list[str]:
        """What is right, of each loader's first pass."""
        return [
            finding.text
            for loader in self.observation.loaders
            for finding in loader.passes[0].counted.findings
            if finding.sign == "right"
        ]


def run(folder: Path, program: str, ranks: int = 2, local: int | None = None, **variables: str) -> Ended:
    """Run a program to its end. `local` ranks are on one node (default: all)."""
    path = folder / "train.py"
    path.write_text(_BEGIN + program)
    common = {**os.environ, "TORCHTALLY_OBSERVE": "auto", "MASTER_ADDR": "127.0.0.1", **variables}
    common |= {"MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    places = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    common |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONUNBUFFERED": "1"}
    common.pop("TORCHTALLY_OBSERVED", None)
    processes = [
        subprocess.Popen(
            [sys.executable, str(path)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank % (local or ranks)), "HOSTNAME": f"pod-{rank}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    out, err = ("".join(texts) for texts in zip(*outputs, strict=True))
    return Ended([process.returncode for process in processes], out, err)
