"""Ranks that hang: where each stands is known before they end. Real agents, real ranks."""

import contextlib
import faulthandler
import os
import re
import subprocess
import sys
from pathlib import Path

import launched
import pytest
from task_runs import reported

from torchtally import events
from torchtally.pod import hang, stacks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a signal for the stacks is Linux's alone")

OBSERVER = Path(__file__).parents[3] / "trainer/torchtally_observer"
SCRIPT = """
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torchtally import Account

def never_returns():
    while True:
        {loop}

def waits_for_all():
    dist.all_reduce(torch.ones(1))

dist.init_process_group("gloo", timeout=timedelta(seconds={timeout}))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Account(task="hangs", plan={{"train": 1}}) as account:
    for batch in account.epoch("train", 1, account.loader(torch.ones(30, 1), "train", batch_size=1)):
        model(batch.data).sum().backward()
        optimizer.step()
        account.commit()
        if batch.step == 3 and dist.get_rank() == dist.get_world_size() - 1:
            never_returns()
        waits_for_all()
        time.sleep(0.1)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    more = {"TORCHTALLY_HANG_SECONDS": "1", "TORCHTALLY_OUTPUT": str(tmp_path / "output")}
    return launched.environment(**more, **launched.STRICT)


def script(folder: Path, loop: str, timeout: int) -> list[str]:
    (path := folder / "hangs.py").write_text(SCRIPT.format(loop=loop, timeout=timeout))
    return ["run", str(path)]


@pytest.mark.parametrize("loop", ["time.sleep(1)", pytest.param("pass", marks=pytest.mark.nightly)])
def test_the_termination_message_says_where_each_rank_stood(two: launched.Job, tmp_path: Path, loop: str) -> None:
    command = script(tmp_path, loop, 8)
    pods = two.all(command)
    assert [pod.wait() for pod in pods] == [203, 203], pods[0].errors
    for pod, name in zip(pods, ("demo-master-0", "demo-worker-0"), strict=True):
        # A rank that waits for the other one's start is told as well. Nothing is told twice.
        *_, before, told = [None, *reported(pod.errors, events.Stuck)]
        assert not before or places(before) != places(told)
        waits = r"rank 0( \(demo-master-0\))? stands in \w+ \((?!hangs)\w+.py:\d+\)"
        hangs = r"rank 1( \(demo-worker-0\))? stands in never_returns \(hangs.py:\d+\)"
        assert re.search(waits, told.stands) and re.search(hangs, told.stands), told
        assert told.seconds >= 1.0 and told.stacks == str(tmp_path / f"output/stacks-{name}.txt")
        assert pod.message.endswith(f"\nBefore: {told.stands}"), pod.message
    own = (tmp_path / "output/stacks-demo-worker-0.txt").read_text()
    assert own.startswith("rank 1 (demo-worker-0)\n") and "in never_returns" in own and "waits_for_all" not in own


def places(told: events.Stuck) -> str:
    return re.sub(r":\d+\)", ")", told.stands)


def test_ranks_that_go_on_have_not_hung(two: launched.Job, tmp_path: Path) -> None:
    """Rank 1 rests until both pods have reported where the ranks stand."""
    told = f"['taken a batch' in each.read_text() for each in Path({str(tmp_path)!r}).glob('*.err')] == [True, True]"
    command = script(tmp_path, f"from pathlib import Path; time.sleep(0.1)\n        if {told}: return", 100)
    pods = two.all(command)
    assert [pod.wait() for pod in pods] == [0, 0], pods[1].errors
    for pod in pods:
        assert "taken a batch for 1 s" in pod.errors
        assert len(reported(pod.errors, events.Stuck)) >= len(reported(pod.errors, events.Continued)) > 0
        assert "the ranks continue" in pod.errors and "Before:" not in pod.errors


OBSERVED = """
import os, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

def exports():
    while not os.path.exists("{end}"):
        time.sleep(0.1)

def train(samples):
    for batch in DataLoader(torch.ones(samples, 1)):
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.1)

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if dist.get_rank() == 0:
    train(3)
    exports()
    train(20)  # long enough for a look of the pod
else:
    train(23)
"""


def test_ranks_of_an_observed_script_that_have_unequal_batches_are_told_and_not_ended(
    two: launched.Job, tmp_path: Path
) -> None:
    (path := tmp_path / "uneven.py").write_text(OBSERVED.format(end=tmp_path / "end"))
    pods = two.all(["run", str(path)])
    for pod in pods:
        launched.until("it is told", lambda pod=pod: "taken a batch for 1 s" in pod.errors)
    (tmp_path / "end").touch()
    assert [pod.wait() for pod in pods] == [0, 0], pods[1].errors
    for pod in pods:
        told = reported(pod.errors, events.Stuck)[-1]
        assert re.search(r"rank 0( \(demo-master-0\))? stands in exports \(uneven.py:\d+\)", told.stands), told
        assert re.search(r"rank 1( \(demo-worker-0\))? stands in _engine_run_backward ", told.stands), told
        assert f"no rank of this pod has taken a batch for {told.seconds:g} s: {told.stands}" in pod.errors
        assert len(reported(pod.errors, events.Stuck)) >= len(reported(pod.errors, events.Continued)) > 0


STANDS = """
import os, time
import torch.distributed as dist

def waits():
    while not os.path.exists("{moved}"):
        time.sleep(0.1)

def downloads():
    while not os.path.exists("{end}"):
        time.sleep(0.1)

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    waits()  # and goes on to what uses as little CPU
    downloads()
dist.barrier()
while not os.path.exists("{seen}"):  # the pods see that they compute
    pass
"""


@pytest.mark.parametrize("how", ["observed", "not observed", pytest.param("wrapped", marks=pytest.mark.nightly)])
def test_ranks_that_stand_still_before_a_first_batch_are_told_and_not_ended(
    two: launched.Job, tmp_path: Path, how: str
) -> None:
    """Also where nobody observes them, and where a program starts Python, whose first one has ended."""
    files = {name: tmp_path / name for name in ("moved", "end", "seen")}
    (path := tmp_path / "stands.py").write_text(STANDS.format(**files))
    shell = launched.shell(f"{sys.executable} -c 'print()'; {sys.executable} {path}")
    places = [str(OBSERVER), str(OBSERVER.parent)]  # as without an installation, whose .pth file does the same
    more = {"TORCHTALLY_OBSERVE": "never", "PYTHONPATH": os.pathsep.join(places)} if how == "not observed" else {}
    pods = two.all(shell if how == "wrapped" else ["run", str(path)], **more)
    barrier = r"rank 0( \(demo-master-0\))? stands in \w+ \(distributed_c10d.py:"
    for function, end in (("waits", files["moved"]), ("downloads", files["end"])):
        place = rf"rank 1( \(demo-worker-0\))? stands in {function} \(stands.py:"
        both = re.compile(f"{barrier}.*; {place}|{place}.*; {barrier}")
        for pod in pods:
            launched.until("both are told", lambda pod=pod, both=both: both.search(pod.errors))
        end.touch()
    for pod in pods:
        launched.until("it continues", lambda pod=pod: reported(pod.errors, events.Continued))
    files["seen"].touch()
    assert [pod.wait() for pod in pods] == [0, 0], pods[1].errors
    for pod in pods:
        assert re.search("the ranks of this pod have used almost no CPU for [0-9]+ s: rank ", pod.errors), pod.errors


def test_a_program_without_python_that_stands_still_is_told_by_its_name(alone: launched.Job, tmp_path: Path) -> None:
    pod = alone.start(0, launched.shell(f"sleep 1000 & until [ -e {tmp_path}/end ]; do sleep 0.3; done; kill $!"))
    launched.until("it is told", lambda: "rank 0 stands in the program sleep" in pod.errors)
    (tmp_path / "end").touch()
    assert pod.wait() == 0


def test_a_rank_stands_in_the_function_that_called_pythons_own_library(tmp_path: Path) -> None:
    with (tmp_path / "stacks").open("w+") as file:
        with contextlib.ExitStack() as stack:  # its __exit__() writes the stacks: the innermost frame
            stack.callback(faulthandler.dump_traceback, file)
        file.seek(0)
        found = file.read()
    assert re.search(r'contextlib.py", line \d+ in .*\n(.*\n)*.*test_hang.py"', found)
    assert re.fullmatch(r"test_a_rank_stands_in_the_function_\w+ \(test_hang.py:\d+\)", stacks.place(found))


SIGNS = """
import subprocess, sys
from torchtally_observer import process, signs
signs.give()
signs.taken()
subprocess.run([sys.executable, "-c", "from torchtally_observer import signs; signs.give(); signs.taken()"], check=True)
{more}
"""


@pytest.mark.parametrize(("more", "count"), [("", 1), ("process.current().turn_off(ValueError())", 0)])
def test_the_signs_of_a_rank(tmp_path: Path, more: str, count: int) -> None:
    """What it starts has the same environment, and gives none. An observer that has failed sees no batch any more."""
    variables = {"TORCHTALLY_STACKS": str(tmp_path), "RANK": "3"}
    program = [sys.executable, "-c", SIGNS.format(more=more)]
    for _ in range(2):  # a rank may be started again
        with subprocess.Popen(program, env={**os.environ, **variables}) as started:
            assert started.wait() == 0
        assert [*stacks.signs(tmp_path)] == [stacks.Sign(rank=3, pid=started.pid, count=count, over=False)]


def test_ranks_that_do_not_notice_are_asked_before_they_are_killed(tmp_path: Path) -> None:
    """Without any sample: rank 1 has failed, and rank 0 does not notice it."""
    (program := tmp_path / "deaf.py").write_text(
        "import os, time\n"
        "import torch.distributed as dist\n"
        "from torchtally import Account\n"
        "def deaf():\n"
        "    while True: time.sleep(1)\n"
        "dist.init_process_group('gloo')\n"
        "with Account(task='deaf', plan={'train': 1}):\n"
        "    os._exit(7) if os.environ['RANK'] == '1' else deaf()\n"
    )
    with launched.job(launched.environment(TORCHTALLY_OUTPUT=str(tmp_path), **launched.STRICT), tmp_path, 2) as job:
        pods = [job.start(rank, ["run", str(program)]) for rank in range(2)]
        assert [pod.wait() for pod in pods] == [203, 7]
    (told,) = reported(pods[0].errors, events.Stuck)
    assert (told.seconds, told.stands) == (None, "rank 0 stands in deaf (deaf.py:5)")
    cause, before = pods[0].message.splitlines()
    assert (
        cause.startswith("rank 1 (demo-worker-0) failed with exit code 7") and "; the ranks of demo-master-0" in cause
    )
    assert before == "Before: rank 0 stands in deaf (deaf.py:5)"
    assert "in deaf" in (tmp_path / "stacks-demo-master-0.txt").read_text()


NEVER_ENDS = """
import os, threading, time
import torch, torch.distributed as dist
from torchtally import Account

def uploads():
    while not os.path.exists("{end}"):
        time.sleep(0.1)

dist.init_process_group("gloo")
with Account("never ends", epochs=1) as account:
    for batch in account.epoch("train", 1, account.loader(torch.ones(8, 1), "train", batch_size=1)):
        account.commit()
if dist.get_rank() == 0:
    threading.Thread(target=uploads).start()
dist.destroy_process_group()
"""


def test_a_program_that_does_not_end_after_its_last_sample_is_told_and_not_ended(
    two: launched.Job, tmp_path: Path
) -> None:
    (path := tmp_path / "never_ends.py").write_text(NEVER_ENDS.format(end=tmp_path / "end"))
    command = ["run", str(path)]
    late = {"TORCHTALLY_HANG_SECONDS": "60"}  # a busy machine may end rank 1 late
    pods = [two.start(0, command), two.start(1, command, **late)]
    told = "all samples were consumed 1 s ago, and the program has not ended: rank 0 stands in _shutdown (threading.py:"
    launched.until("it is told", lambda: told in pods[0].errors)
    assert "which waits for threads: uploads (never_ends.py:" in pods[0].errors
    assert pods[0].process.poll() is None
    (tmp_path / "end").touch()
    assert [pod.wait() for pod in pods] == [0, 0]
    assert "all samples were consumed" not in pods[1].errors


def test_an_output_folder_that_takes_nothing_hides_no_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (output := tmp_path / "output").write_text("no folder")
    monkeypatch.setattr(stacks, "signs", lambda _: [stacks.Sign(rank=0, pid=1, count=3, over=False)])
    monkeypatch.setattr(stacks, "of", lambda *_: WAITS)
    watch = hang.Hang("pod-0", tmp_path, output, 1.0, None)
    watch.look()
    assert watch.sentence == "rank 0 stands in _engine_run_backward (graph.py:829)"
    said = capsys.readouterr()
    assert "the stacks of the ranks cannot be written" in said.err and f"{watch.sentence}\n" in said.err
    assert reported(said.err + said.out, events.Stuck)[0].stacks is None


WAITS = """\
Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.13/threading.py", line 359 in wait

Current thread 0x00007f0 (most recent call first):
  File "/venv/lib/python3.13/site-packages/torch/autograd/graph.py", line 829 in _engine_run_backward
  File "/venv/lib/python3.13/site-packages/torch/_tensor.py", line 648 in backward
  File "/app/train.py", line 41 in step
  File "/app/train.py", line 90 in <module>
"""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (WAITS, "_engine_run_backward (graph.py:829)"),
        ("Current thread 0x1 (most recent call first):\n  <no Python frame>\n", "no Python code"),
    ],
)
def test_where_a_rank_stands(text: str, place: str) -> None:
    assert stacks.place(text) == place


def test_the_ranks_that_stand_elsewhere_are_named() -> None:
    many = [(rank, f"pod-{rank}", "step (train.py:41)") for rank in range(12) if rank != 7]
    assert hang.gist([*many, (7, "pod-7", "fetch (data.py:17)")]) == (
        "ranks 0, 1, 2, 3, 4, 5, 6, 8 and 3 more stand in step (train.py:41); "
        "rank 7 (pod-7) stands in fetch (data.py:17)"
    )
    apart = [(rank, "pod", f"function_{rank} (a_file_with_a_long_name.py:{rank})") for rank in range(99)]
    assert len(hang.gist(apart)) < 1000


def test_a_rank_that_is_not_ready_to_write_its_stacks_is_left_alone(tmp_path: Path) -> None:
    """This process has no handler of the signal, which would end it."""
    (tmp_path / "0").touch()
    assert stacks.of(tmp_path, 0, os.getpid()) == ""
