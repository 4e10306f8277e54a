"""What runs beside a job needs no PyTorch: installed from the wheel, and from a clone by `make scripts`."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import bruteforce
import pytest
from answering import Server

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/fashion-mnist.yaml"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
Run = Callable[..., subprocess.CompletedProcess[str]]


def made(*command: object, folder: Path = ROOT) -> str:
    ended = subprocess.run([*map(str, command)], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def running(folder: Path, programs: Path) -> Run:
    def run(program: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(programs / program), *map(str, arguments)]
        return subprocess.run(command, cwd=folder, env=ENVIRONMENT | variables, capture_output=True, text=True)

    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of an environment that has the wheel, and what it asks for."""
    folder = tmp_path_factory.mktemp("installed")
    made("uv", "build", "--quiet", "--out-dir", folder, ROOT / "trainer")  # the wheel is made from the sdist
    [wheel] = folder.glob("*.whl")
    made("uv", "venv", "--quiet", "--python", "3.11", folder / "venv")
    made("uv", "pip", "install", "--quiet", "--python", folder / "venv", wheel)
    return running(folder, folder / "venv/bin")


def test_a_check_of_a_machine_without_torch(run: Run) -> None:
    checked = run("torchtally", "check")
    assert checked.returncode == 0 and "✓ network: " in checked.stdout
    assert "! pytorch: no PyTorch in this environment" in checked.stdout and "without " in checked.stdout


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Of a run of 2 ranks, of which rank 1 has lost a sample."""
    path = tmp_path / "demo.log"
    path.write_text(bruteforce.text(bruteforce.run(consume=lambda phase, epoch, rank, shard: shard[rank == 1 :])))
    return path


def test_no_torch_is_installed(run: Run) -> None:
    assert "No module named 'torch'" in run("python", "-c", "import torch").stderr
    helped = run("torchtally", "--help")
    assert helped.returncode == 0
    for command in ("verify", "jobs", "page", "local", "observe", "check"):
        assert f"\n  {command} " in helped.stdout
        shown = run("torchtally", command, "--help")
        assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.parametrize("command", [("run", "fashion-mnist"), ("run", "--", "true"), ("spark", "fashion-mnist")])
def test_what_trains_says_what_it_needs(run: Run, command: tuple[str, ...]) -> None:
    ended = run("torchtally", *command)
    assert ended.returncode == 2
    [sentence] = (line for line in ended.stderr.splitlines() if not line.startswith("TORCHTALLY-EVENT"))
    assert sentence.startswith("torchtally: training needs the Python package ")
    assert "install torchtally with its extra `train`" in sentence


def test_an_import_of_what_trains_says_what_it_needs(run: Run) -> None:
    said = run("python", "-c", "from torchtally import Account").stderr.splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: torchtally.Account needs the Python package ")
    assert said.endswith(": install torchtally with its extra `train`")


def test_verify_and_page_name_what_is_wrong(run: Run, log: Path, tmp_path: Path) -> None:
    verified = run("torchtally", "verify", log)
    assert (verified.returncode, verified.stderr) == (1, "")
    assert "rank 1: 1 (" in verified.stdout and "sympy" not in verified.stdout
    shown = run("torchtally", "page", log, tmp_path / "page.html")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "<!doctype html>" in (tmp_path / "page.html").read_text().lower()


@pytest.mark.parametrize("command", [("verify", "--job", "demo"), ("jobs", "status", "demo")])
def test_a_cluster_is_read(run: Run, server: Server, tmp_path: Path, command: tuple[str, ...]) -> None:
    server.proves()
    proved = run("torchtally", *command, KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert (proved.returncode, proved.stderr) == (0, "")


def test_local_runs_a_manifest_and_observe_extends_it(run: Run) -> None:
    ended = run("torchtally", "local", "-f", EXAMPLE, "--entrypoint", "echo")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(" run fashion-mnist") == 4
    added = run("torchtally", "observe", "inject", "-f", EXAMPLE)
    assert added.returncode == 0 and "name: torchtally-observer" in added.stdout
    assert (Path(run("torchtally", "observe", "path").stdout.strip()) / "sitecustomize.py").exists()


@pytest.mark.nightly
def test_make_scripts_installs_all_that_the_scripts_of_a_clone_need(tmp_path: Path, log: Path) -> None:
    """In a fresh clone, from the package index."""
    for name in filter(None, made("git", "ls-files", "-z").split("\0")):
        if name.startswith(("Makefile", "examples/", "scripts/", "tools/", "trainer/")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    made("make", "scripts", folder=tmp_path)
    run = running(tmp_path, tmp_path)
    path = f"{tmp_path / '.venv/bin'}:{os.environ['PATH']}"
    assert "No module named 'torch'" in run(".venv/bin/python", "-c", "import torch").stderr
    for command in ("scripts/verify_shards.py", "scripts/torchtally_jobs.py status"):
        script, *first = command.split()
        shown = run(script, *first, log, PATH=path)
        assert (shown.returncode, shown.stderr) == (1, "")
    asked = run("scripts/torchtally_jobs.py", "list", "--context", "nowhere", PATH=path)
    assert "cannot use the context nowhere" in asked.stderr
    ended = run("scripts/run_local.py", "-f", EXAMPLE, "--entrypoint", "echo", PATH=path)
    assert (ended.returncode, ended.stdout.count(" run fashion-mnist")) == (0, 4), ended.stderr
    assert run("scripts/observe.py", "path", PATH=path).stdout == f"{tmp_path / 'trainer/torchtally_observer'}\n"
