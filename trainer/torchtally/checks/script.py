"""Two ranks of a script on this machine, up to its second step: what it is handed out, and what ends it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchtally import events
from torchtally.checks.finding import Finding, bad, good, warning
from torchtally.observed import judge
from torchtally.observed.finding import Sign

DONE = 86  # exit code of a rank that has made two steps
_RANKS = 2
_LINES = 5  # of its output that are shown


def findings(script: Sequence[str], seconds: float) -> Iterator[Finding]:
    """Run a script with its arguments. What it writes on its way stays."""
    name = script[0]
    if not Path(name).is_file():
        yield bad("script", f"there is no file {name}: give the path of a script in Python")
        return
    program = [sys.executable, "-u", "-m", "torchtally.checks.two_steps", *script]
    with tempfile.TemporaryDirectory(prefix="torchtally-check-") as output:
        env = {**os.environ, "PET_NPROC_PER_NODE": str(_RANKS), "TORCHTALLY_OUTPUT": output}
        env.pop("TORCHTALLY_OBSERVE", None)
        command = [sys.executable, "-m", "torchtally.cli", "run", "--", *program]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            said, _ = process.communicate()
            yield bad("script", f"{name}: {_RANKS} ranks have not made two steps in {seconds:g} s{_tail(said)}")
            return
        except BaseException:
            process.terminate()
            raise
    yield _ended(name, process.returncode, said)
    if process.returncode in (0, DONE):
        yield _observed(name, said)


def _ended(name: str, code: int, said: str) -> Finding:
    if code == DONE:
        return good("script", f"{name}: {_RANKS} ranks have made two steps")
    if code == 0:
        return warning("script", f"{name} has ended before the second step of an optimizer of PyTorch")
    causes = [each.event.cause for each in events.in_lines(said.splitlines()) if isinstance(each.event, events.Ended)]
    cause = next(filter(None, causes), None)
    return bad("script", f"{name} failed with exit code {code}{f': {cause}' if cause else _tail(said)}")


def _observed(name: str, said: str) -> Finding:
    found = judge.of(said.splitlines())
    if found is None:
        if any(isinstance(each.event, events.Begun | events.Resumed) for each in events.in_lines(said.splitlines())):
            return good("samples", f"{name} has an account, which proves its samples at the end of each epoch")
        return warning("samples", f"{name} was handed out no batch of a DataLoader, so nothing can be observed")
    if found.faults:
        return bad("samples", "; ".join(found.faults))
    notes = [
        f"{loader.loader}: {finding.text}"
        for loader in found.loaders
        if loader.trains
        for finding, _ in loader.all_findings
        if finding.sign is Sign.NOTE and not finding.about.startswith("left")  # the check itself has ended the pass
    ]
    if notes:
        return warning("samples", "; ".join(notes))
    loaders = ", ".join(each.loader for each in found.loaders)
    return good("samples", f"no fault in what two steps were handed out by {loaders}")


def _tail(said: str) -> str:
    lines = [line for line in said.splitlines() if not line.startswith("TORCHTALLY")][-_LINES:]
    return f"; its last lines: {' | '.join(lines)}" if lines else ""
