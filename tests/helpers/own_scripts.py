"""A script of a user's own, started by `torchtally run`, and what the verifier says of its log."""

import os
import subprocess
import sys
from pathlib import Path

import called

from torchtally import events

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
ORDINARY, OWN = (ROOT / "examples" / name for name in ("without/own_script.py", "own_script.py"))

LIMIT = 240  # seconds


def started(
    script: Path, *arguments: str, world: int = 2, threads: str | None = "1", **variables: str
) -> subprocess.CompletedProcess[str]:
    """`torchtally run -- python script` on `world` ranks of one pod, whose environment has these variables as well."""
    chosen = {"OMP_NUM_THREADS": threads} if threads else {}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_", "TORCH"))}
    return subprocess.run(
        [sys.executable, "-m", "torchtally.cli", "run", "--", sys.executable, str(script), *arguments],
        env={**kept, "PET_NPROC_PER_NODE": str(world), **chosen, "HF_HUB_OFFLINE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )


def reported(output: str) -> list[events.Event]:
    return [record.event for record in events.in_lines(output.splitlines())]


def verified(output: str) -> str:
    """What `torchtally verify` says of this log, which it must accept."""
    judged = called.verified("-", log=output)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    return judged.stdout
