"""The scripts need no PyTorch, and `make scripts` installs all that they need."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import bruteforce
import pytest
from answering import Server

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/fashion-mnist.yaml"
# Runs a script as `python SCRIPT …` does, where torch cannot be imported.
BLOCKED = """\
import os, runpy, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(f"a script imported {name}")

sys.meta_path.insert(0, Block())
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def blocked(script: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, str(ROOT / "scripts" / script), *map(str, arguments)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)


def test_the_block_blocks(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch.nn\n")
    assert "ImportError: a script imported torch\n" in blocked(str(tmp_path / "script.py")).stderr


def test_verify_shards_proves_a_run_and_names_what_is_wrong(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    lines = bruteforce.run()
    log.write_text(bruteforce.text([*lines, bruteforce.last(lines)]))
    proved = blocked("verify_shards.py", log)
    assert (proved.returncode, proved.stderr) == (0, "")
    wrong = bruteforce.run(plan={"train": 1}, consume=lambda phase, epoch, rank, shard: shard[rank == 1 :])
    log.write_text(bruteforce.text(wrong))
    assert "rank 1: 1 (" in blocked("verify_shards.py", log).stdout


@pytest.mark.parametrize("command", [("verify_shards.py", "--job", "demo"), ("torchtally_jobs.py", "status", "demo")])
def test_a_cluster_is_read(server: Server, tmp_path: Path, command: tuple[str, ...]) -> None:
    proved = blocked(*command, KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert (proved.returncode, proved.stderr) == (0, "")


def test_run_local_runs_a_manifest() -> None:
    ended = blocked("run_local.py", "-f", EXAMPLE, "--entrypoint", "echo")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(" run fashion-mnist") == 4


@pytest.mark.nightly
def test_make_scripts_installs_all_that_they_need(tmp_path: Path) -> None:
    """In a fresh clone, from the package index."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if name.startswith(("Makefile", "examples/", "scripts/", "trainer/")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    made = subprocess.run(["make", "scripts"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    log = tmp_path / "demo.log"
    log.write_text(bruteforce.text(bruteforce.run(consume=lambda phase, epoch, rank, shard: shard[rank == 1 :])))

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        python = [str(tmp_path / ".venv/bin/python"), *map(str, command)]
        return subprocess.run(python, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert "No module named 'torch'" in run("-c", "import torch").stderr
    verified = run("scripts/verify_shards.py", log)
    assert (verified.returncode, verified.stderr) == (1, "")
    assert "rank 1: 1 (" in verified.stdout and "sympy" not in verified.stdout
    asked = run("scripts/verify_shards.py", "--job", "demo", "--context", "nowhere")
    assert "cannot use the context nowhere" in asked.stderr
    shown = run("scripts/torchtally_jobs.py", "list", "--context", "nowhere")
    assert "cannot use the context nowhere" in shown.stderr
    shown = run("scripts/torchtally_jobs.py", "status", log)
    assert (shown.returncode, "disproved" in shown.stdout) == (1, True), shown.stderr
    ended = run("scripts/run_local.py", "-f", EXAMPLE, "--entrypoint", "echo")
    assert (ended.returncode, ended.stdout.count(" run fashion-mnist")) == (0, 4), ended.stderr
