"""A script in a forked rank is as if Python had been started with it, and what cannot be is started from nothing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_own_scripts import SCRIPTS, started

from torchtally.environment import forks
from torchtally.errors import Refused
from torchtally.pod.script import _READ_BY_IMPORTS, Script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux alone")

STARTED = str(SCRIPTS / "started/__main__.py")
PYTHON = Path(sys.executable).name
COMMANDS = [
    [PYTHON, STARTED, how] for how in ("raise", "interrupt", "hook", "spawn", "thread", "'a text'", "300", "None")
]
COMMANDS += [[PYTHON, "-u", STARTED, "1"], [PYTHON, "-m", "started", "raise"], [PYTHON, "-u", "-m", "started", "1"]]
COMMANDS += [[PYTHON, "-m", "started.nothing"], [PYTHON, "nothing.py"], [PYTHON, "syntax.py"]]

# Runs each command in a fork of a process that has imported torch. It leaves its end to Python.
FORKS = """
import gc, json, os, sys
from torchtally.pod.script import _READ_BY_IMPORTS, Script
gc.freeze()  # as a pod does before it forks its ranks
for number, command in enumerate(json.loads(sys.argv[1])):
    sys.stdout.flush()
    if not (pid := os.fork()):
        for stream in (1, 2):
            os.dup2(os.open(f"{number}-{stream}", os.O_CREAT | os.O_WRONLY), stream)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
else:
    sys.exit()
sys.exit(Script.of(command, os.environ).run())
"""


@pytest.mark.cold
def test_it_begins_and_ends_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "started").symlink_to(SCRIPTS / "started")
    (tmp_path / "syntax.py").write_text("def (")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    how: Any = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    forked = subprocess.run([sys.executable, "-c", FORKS, json.dumps(COMMANDS)], **how)
    assert forked.returncode == 0, forked.stderr
    for number, (command, code) in enumerate(zip(COMMANDS, forked.stdout.split(), strict=True)):
        (tmp_path / "unflushed").write_text("")
        plain = subprocess.run(command, **how)
        found = [(tmp_path / f"{number}-{stream}").read_text() for stream in (1, 2)]
        assert found == [plain.stdout, plain.stderr], command
        assert int(code) == plain.returncode, command


@pytest.mark.cold
def test_threads_seeds_and_files_are_those_of_a_rank_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "tells.py"
    script.write_text(
        "import sys; forked = 'torch' in sys.modules\n"
        "import json, os, random, numpy, threadpoolctl, torch\n"
        "pools = [each['num_threads'] for each in threadpoolctl.threadpool_info()]\n"
        "same = [torch.get_num_threads(), torch.__config__.parallel_info(), sorted(pools), sorted(os.environ)]\n"
        "same += [[os.environ[name] for name in os.environ if name.startswith('OMP')], os.getsid(0) == os.getpid()]\n"
        "same += [sys.argv, sys.path]\n"
        "same += [sorted(int(each) for each in os.listdir('/proc/self/fd'))[:4]]\n"
        "drawn = [random.random(), numpy.random.rand(), torch.rand(1).item()]\n"
        "open(f'{sys.argv[1]}-{os.environ[\"RANK\"]}', 'w').write(json.dumps([same, forked, drawn]))\n"
    )
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    inherited = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    found: dict[str, Any] = {}
    for how in ("auto", "never"):
        monkeypatch.setenv("TORCHTALLY_FORK", how)
        ended = started(script, str(tmp_path / how), threads=None)
        assert ended.returncode == 0, ended.stderr
        for rank in "01":
            found[how + rank] = json.loads((tmp_path / f"{how}-{rank}").read_text())
    os.close(inherited)
    assert [each[1] for each in found.values()] == [True, True, False, False]
    for rank in "01":
        ours, plain = found[f"auto{rank}"][0], found[f"never{rank}"][0]
        ours[6][1] = plain[6][1]  # the argument
        assert ours == plain
    draws = [each for _, _, drawn in found.values() for each in drawn]
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize(
    ("text", "forked"),
    [
        ("", True),
        ("import os; os.environ['OMP_NUM_THREADS'] = '3'", False),
        ("import queue  # beside it is a module of this name", False),
        ("import yaml  # beside it is a folder of data of this name", True),
    ],
)
def test_what_a_fork_cannot_give_is_started_from_nothing(text: str, forked: bool, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(text + "\nimport sys; print('torch' in sys.modules)")
    if "queue" in text:
        (tmp_path / "queue.py").touch()
    (tmp_path / "json").mkdir()
    ended = started(script, world=1)
    assert (ended.returncode, ended.stdout.split()[-1]) == (0, str(forked)), ended.stderr


@pytest.mark.parametrize(
    ("command", "environment", "is_one"),
    [
        ([sys.executable, "a.py"], {}, True),
        ([sys.executable, "-u", "-m", "a"], {"MKL_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}, True),
        ([sys.executable, "a.py"], {"MKL_NUM_THREADS": "2"}, False),
        ([sys.executable, "a.py"], {"PYTHONPROFILEIMPORTTIME": "1"}, False),
        ([sys.executable, "-X", "dev", "a.py"], {}, False),
        ([sys.executable, "-O", "a.py"], {}, False),
        ([sys.executable, "-c", "pass"], {}, False),
        ([sys.executable, "folder"], {}, False),
        ([sys.executable], {}, False),
        (["sh", "a.py"], {}, False),
        ([str(Path(sys.executable).resolve()), "a.py"], {}, False),  # not in this virtual environment
    ],
)
def test_a_fork_can_be_python_with_a_script_or_a_module(
    command: list[str], environment: dict[str, str], is_one: bool
) -> None:
    assert (Script.of(command, environment) is not None) == is_one


def test_the_guide_names_the_variables_that_are_read_by_imports() -> None:
    guide = (SCRIPTS.parents[2] / "docs/guides/own-script.md").read_text()
    (text,) = re.findall(r"one that begins with ([^\n]*(?:\n  [^\n]*)*)", guide)
    assert re.findall(r"`(\w+)_`", text) == re.findall(r"[A-Z]{2,}", _READ_BY_IMPORTS.pattern.decode())


def test_the_choice_of_the_user_is_auto_or_never() -> None:
    assert forks({}) and forks({"TORCHTALLY_FORK": "auto"}) and not forks({"TORCHTALLY_FORK": "never"})
    with pytest.raises(Refused, match="TORCHTALLY_FORK='no' must be auto or never"):
        forks({"TORCHTALLY_FORK": "no"})
