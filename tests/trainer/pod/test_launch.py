"""What a pod's end says: exit codes, last words, signals; real agents, real ranks, real deaths."""

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import launched
import psutil
import pytest

# A peer is lost as gloo says it, without gloo.
CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.1.2.3]:4711"


@pytest.fixture
def environment() -> dict[str, str]:
    return launched.environment()


TWO = {"PET_NPROC_PER_NODE": "2"}
# An entry point that does something else before.
START = "import sys; from torchtally import cli; from torchtally.pod import heartbeat, rendezvous\n{}\n"
START += "sys.exit(cli.main(sys.argv[1:]))"
# And one whose agent is told to stop before it knows of the ranks that it has started.
STARTING = (
    "import signal, sys; from torch.distributed.elastic.agent.server import local_elastic_agent as agent\n"
    "from torchtally import cli\n"
    "start = agent.start_processes; agent.start_processes = lambda **how: (start(**how), signal.pause())[0]\n"
    "sys.exit(cli.main(sys.argv[1:]))"
)


def python(script: str) -> list[str]:
    return ["run", "--", sys.executable, "-c", script]


def recorded(body: str) -> list[str]:
    """A user's own program, whose main function torch records."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return python(
        "import os, sys\nfrom torch.distributed.elastic.multiprocessing.errors import record\n"
        f"rank = int(os.environ['RANK'])\n@record\ndef main():\n{lines}main()"
    )


# One pod.


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("exit 7", 7, "rank 1 (demo-master-0) failed with exit code 7, its log says why"),
        ("kill -KILL $$", 137, "rank 1 (demo-master-0) was ended by signal 9 (SIGKILL)"),
    ],
)
def test_the_failed_rank_gives_its_code_and_its_name(alone: launched.Job, end: str, code: int, message: str) -> None:
    pod = alone.start(0, launched.shell(f"[ $RANK = 0 ] && exec sleep 1000; {end}"), **TWO)
    assert pod.wait() == code
    assert pod.message.startswith(message)
    assert f"torchtally: {message}" in pod.errors


@pytest.mark.parametrize(
    ("first_line", "why"),
    [("echo without an interpreter", "Exec format error"), ("#!/no/interpreter", "No such file or directory")],
)
def test_a_program_that_the_kernel_does_not_start_is_told_in_one_sentence(
    alone: launched.Job, tmp_path: Path, first_line: str, why: str
) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"{first_line}\n")
    script.chmod(0o755)
    pod = alone.start(0, ["run", "--", str(script)])
    assert pod.wait() == 126
    assert f"torchtally: '{script}' cannot be run here: {why}\n" in pod.errors
    assert "Traceback" not in pod.errors


def test_an_error_is_told_with_type_text_rank_and_its_last_line(alone: launched.Job) -> None:
    pod = alone.start(0, recorded("if rank == 1:\n    {}['no such key']\nimport time; time.sleep(1000)"), **TWO)
    assert pod.wait() == 1
    assert re.fullmatch(
        r"rank 1 \(demo-master-0\) failed with exit code 1: KeyError: 'no such key'\n  File .*, in main", pod.message
    )


OF_A_RANK = "rank 1 (demo-worker-0) has seed 2 and rank 0 (demo-master-0) has 1"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("ZeroDivisionError('by zero')", 1, "rank 0 (demo-master-0) failed with exit code 1: ZeroDivisionError: by z"),
        ("errors.Unproven('this: and that')", 3, "rank 0 (demo-master-0): this: and that"),
        (f"errors.Refused({OF_A_RANK!r})", 2, OF_A_RANK),  # all ranks end with it
    ],
)
def test_a_sentence_of_a_task_is_told_without_the_name_of_its_type(
    alone: launched.Job, error: str, code: int, message: str
) -> None:
    script = (
        "import sys; from torchtally import errors; from torchtally.commands import train\n"
        f"def run(*_): raise {error}\n"
        "train._run = run; sys.exit(train.main())"
    )
    pod = alone.start(0, ["run", "--", sys.executable, "-c", script, "fashion-mnist"])
    assert pod.wait() == code
    assert pod.message.startswith(message) and (code == 1 or pod.message == message)


def test_an_error_is_printed_once_for_a_pod(alone: launched.Job) -> None:
    """By its entry point, or, behind a shell, which can hide the end of a rank, by the first rank."""
    script = (
        "import sys; from torchtally.distributed import process_group; from torchtally.errors import Refused\n"
        "def main(): raise Refused('seed=-1 must be a whole number')\n"
        "sys.exit(process_group.run(main))"
    )
    command = [sys.executable, "-c", script]
    for behind in (["run", "--", *command], launched.shell(f"{shlex.join(command)}; exit $?")):
        pod = alone.start(0, behind, **TWO)
        assert pod.wait() == 2
        [said] = [line for line in pod.errors.splitlines() if "seed=-1" in line and "TORCHTALLY" not in line]
        assert re.fullmatch(r"torchtally: rank [01] \(demo-master-0\): seed=-1 must be a whole number", said)
        assert re.fullmatch(r"rank [01] \(demo-master-0\): seed=-1 must be a whole number", pod.message)
    pod = alone.start(0, launched.shell(f"{shlex.join(command)}; true"))
    assert (pod.wait(), pod.errors.count("torchtally: seed=-1 must be")) == (0, 1)


def test_two_errors_of_a_pod_are_both_printed(alone: launched.Job) -> None:
    script = (
        "import os, sys; from torchtally.distributed import process_group; from torchtally.errors import Refused\n"
        "def main(): raise Refused(f'seed=-{os.environ[\"RANK\"]} must be a whole number')\n"
        "sys.exit(process_group.run(main))"
    )
    pod = alone.start(0, launched.shell(f"{shlex.join([sys.executable, '-c', script])}; true"), **TWO)
    assert pod.wait() == 0
    assert sorted(re.findall(r"^torchtally: (rank . \(demo-master-0\): seed=-.)", pod.errors, re.MULTILINE)) == [
        "rank 0 (demo-master-0): seed=-0",
        "rank 1 (demo-master-0): seed=-1",
    ]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TORCHTALLY_HANG_SECONDS": "soon"}, "TORCHTALLY_HANG_SECONDS='soon' must be a number of seconds from 0"),
        ({"TORCHTALLY_RETRIES": "none"}, f"TORCHTALLY_RETRIES='none' must be a whole number from 0 to {1 << 31}"),
    ],
)
def test_bad_input_is_told_before_anything_starts(
    alone: launched.Job, variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    pod = alone.start(0, launched.shell("exit 0"), **variables, TORCHTALLY_OUTPUT=str(tmp_path / "output"))
    assert pod.wait() == 2
    assert pod.message == message
    assert f"{message} [T02] https://" in pod.errors
    assert not (tmp_path / "output").exists()


def test_options_of_a_script_are_not_torchruns(alone: launched.Job) -> None:
    """--log could be torchrun's --log-dir or --logs-specs."""
    arguments = ["--log", "a b", "--local=x", "--", "--role", "$HOME"]
    pod = alone.start(0, [*python("import sys; print(sys.argv[1:])"), *arguments])
    assert (pod.wait(), str(arguments) in pod.rest()) == (0, True), pod.errors


def test_a_message_fits_what_kubernetes_keeps(alone: launched.Job) -> None:
    pod = alone.start(0, recorded("raise ValueError('€' * 5000)"))
    assert pod.wait() == 1
    assert 4090 < len(pod.message.encode()) <= 4096
    assert pod.message.startswith("rank 0 (demo-master-0) failed with exit code 1: ValueError: €€€")


def test_outside_of_a_cluster_no_file_is_made(alone: launched.Job, tmp_path: Path) -> None:
    pod = alone.start(0, launched.shell("exit 5"), TORCHTALLY_TERMINATION_LOG=str(tmp_path / "none"))
    assert pod.wait() == 5
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a process of its parent's end on Linux alone")
def test_ranks_end_with_an_agent_that_is_killed(alone: launched.Job) -> None:
    pod = alone.start(0, launched.shell("echo $$; exec sleep 1000"), **TWO)
    ranks = [psutil.Process(int(pod.line())) for _ in range(2)]
    pod.signal(signal.SIGKILL)
    launched.until("they are gone", lambda: all(map(launched.gone, ranks)))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows the signals that a process ignores on Linux alone")
def test_a_rank_ignores_the_signals_that_it_would_ignore_elsewhere(alone: launched.Job) -> None:
    asked = ["grep", "SigIgn", "/proc/self/status"]
    pod = alone.start(0, ["run", "--", *asked])

    def handled_by_an_agent() -> None:
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(each, signal.SIG_DFL)

    found = subprocess.run(asked, capture_output=True, text=True, preexec_fn=handled_by_an_agent)
    assert pod.line() == found.stdout.strip()


@pytest.mark.parametrize("end", ["exit 7", "kill -KILL $$"])
def test_a_rank_that_lost_a_peer_does_not_hide_one_that_failed(alone: launched.Job, tmp_path: Path, end: str) -> None:
    """Both have died when the agent, which looks every 0.1 s, sees it; rank 0 comes first in its list."""
    wait = f"echo $$; until [ -e {tmp_path}/go ]; do sleep 0.01; done;"
    pod = alone.start(0, launched.shell(f"{wait} [ $RANK = 0 ] && exit 203; {end}"), **TWO)
    ranks = [psutil.Process(int(pod.line())) for _ in range(2)]
    pod.signal(signal.SIGSTOP)
    (tmp_path / "go").touch()
    launched.until("both ranks have died", lambda: all(rank.status() == psutil.STATUS_ZOMBIE for rank in ranks))
    pod.signal(signal.SIGCONT)
    assert pod.wait() == (7 if "exit" in end else 137)
    assert pod.message.startswith("rank 1 ")


def test_a_rank_that_lost_a_peer_first_does_not_hide_one_that_failed(alone: launched.Job, tmp_path: Path) -> None:
    """Nor by a second, which is how finely the agent takes the time."""
    ready = tmp_path / "ready"
    first = f"[ $RANK = 0 ] && {{ until [ -e {ready} ]; do sleep 0.01; done; exit 203; }}"
    then = f"trap 'sleep 1.1; exit 9' TERM; touch {ready}; while :; do sleep 1; done"
    pod = alone.start(0, launched.shell(f"{first}; {then}"), **TWO)
    assert pod.wait() == 9


# Signals.

at_any_time = pytest.mark.parametrize(
    ("entry", "processes"), [(launched.ENTRY, "2"), (STARTING, "1")], ids=["running", "starting"]
)


@at_any_time
def test_ranks_that_end_well_on_sigterm_end_their_pod_as_terminated(
    alone: launched.Job, entry: str, processes: str
) -> None:
    handled = launched.shell("trap 'echo saved; kill $!; exit 0' TERM; echo ready; sleep 1000 & wait")
    pod = alone.start(0, handled, entry=entry, PET_NPROC_PER_NODE=processes)
    count = int(processes)
    assert [pod.line() for _ in range(count)] == ["ready"] * count
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 143
    assert [pod.line() for _ in range(count)] == ["saved"] * count
    assert pod.message == "demo-master-0 was stopped by signal 15 (SIGTERM)"


def test_a_rank_that_does_not_end_on_sigterm_is_ended_in_time(alone: launched.Job) -> None:
    stubborn = launched.shell("trap 'echo no' TERM; echo $$; while :; do sleep 0.1; done")
    pod = alone.start(0, stubborn, PET_SHUTDOWN_TIMEOUT="1")
    rank = psutil.Process(int(pod.line()))
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 143
    launched.until("the rank is gone", lambda: launched.gone(rank))
    assert pod.message == (
        "demo-master-0 was stopped by signal 15 (SIGTERM), and ranks that did not end within 1 s were killed: "
        "PET_SHUTDOWN_TIMEOUT sets these seconds, and terminationGracePeriodSeconds must be larger"
    )


LOADS = """
import signal, time, torch, torch.distributed as dist
from torchtally import Account
dist.init_process_group("gloo")
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 10000
    def __getitem__(self, index): time.sleep(0.01); return torch.ones(1)
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
with Account(task="loads", plan={"train": 1}) as account:
    for number, _ in enumerate(account.loader(Slow(), "train", batch_size=2, num_workers=2, trains=False)):
        if number == 3: print("ready", flush=True)
        if asked: asked.append(1)
        if len(asked) > 20: print("read on", flush=True); break
"""


def test_the_workers_of_a_loader_outlive_the_sigterm_to_their_rank(alone: launched.Job) -> None:
    pod = alone.start(0, python(LOADS))
    launched.until("the workers read", lambda: pod.line() == "ready")
    pod.signal(signal.SIGTERM)
    assert "read on" in pod.rest()


@at_any_time
def test_a_second_sigterm_ends_the_ranks_at_once(alone: launched.Job, entry: str, processes: str) -> None:
    # What the rank has started goes with it.
    stubborn = launched.shell("trap 'echo no' TERM; sleep 1000 & echo $!; while :; do sleep 0.1; done")
    pod = alone.start(0, stubborn, entry=entry, PET_NPROC_PER_NODE=processes, PET_SHUTDOWN_TIMEOUT="1000")
    for _ in range(int(processes)):
        assert psutil.pid_exists(int(pod.line()))
    family = launched.family(pod.process.pid)[1:]
    pod.signal(signal.SIGTERM)
    assert pod.line() == "no"
    pod.signal(signal.SIGTERM)
    assert pod.wait() == 143
    launched.until("no process is left", lambda: all(map(launched.gone, family)))


def test_sigterm_ends_a_pod_that_waits_for_the_others(two: launched.Job) -> None:
    pod = two.start(1, launched.shell("exit 0"))
    launched.until("it says so", lambda: "does not answer" in pod.errors)
    pod.signal(signal.SIGTERM)
    assert pod.wait() == -signal.SIGTERM


def test_sigterm_ends_a_pod_that_has_failed_already(two: launched.Job) -> None:
    """It would wait some seconds for what the others have to say."""
    _, worker = two.all(launched.shell("[ $RANK = 1 ] && echo ready && exit 1; sleep 1000"))
    rank = psutil.Process(worker.process.pid)
    assert worker.line() == "ready"
    launched.until("its rank has ended", lambda: not rank.children())
    worker.signal(signal.SIGTERM)
    assert worker.wait() in (1, 143)
    assert "Traceback" not in worker.errors


# And one whose agent says that it waits for the others.
WAITING = START.format(
    "from torch.distributed.elastic.utils import store; barrier = store.barrier\n"
    "store.barrier = lambda **how: (print('barrier', flush=True), barrier(**how))"
)


@pytest.mark.parametrize("killed", [False, True])
def test_a_pod_whose_ranks_have_succeeded_starts_again_with_the_master(
    two: launched.Job, tmp_path: Path, killed: bool
) -> None:
    """A master that starts again would wait for ever for a worker that has ended with 0."""
    done, end = tmp_path / "done", tmp_path / "end"
    waits = f"until [ -e {end} ]; do sleep 0.1; done; exit 7"
    pods = two.all(launched.shell(f"if [ $RANK = 1 ]; then touch {done}; exit 0; fi; {waits}"))
    launched.until("rank 1 has succeeded", done.exists)
    if killed:
        pods[0].kill()
    end.touch()
    assert (pods[0].wait(), pods[1].wait()) == (-signal.SIGKILL if killed else 7, 203)
    assert "demo-master-0" in pods[1].message


@pytest.mark.parametrize("done", [0, 1])
def test_sigterm_ends_a_pod_whose_ranks_have_succeeded_before_others(two: launched.Job, done: int) -> None:
    """torchrun would be deaf to it until the others have, too."""
    pods = [two.start(rank, launched.shell(f"[ $RANK = {done} ] || sleep 1000"), entry=WAITING) for rank in range(2)]
    assert pods[done].line() == "barrier"
    pods[done].signal(signal.SIGTERM)
    assert pods[done].wait() == 143
    assert pods[done].message.endswith("was stopped by signal 15 (SIGTERM)")


# How pods meet.


def test_pods_that_do_not_come_are_named_by_those_that_did(three: launched.Job) -> None:
    patience = {"PET_RDZV_CONF": "timeout=10", "TORCHTALLY_SILENCE_SECONDS": "4"}
    here = [three.start(rank, launched.shell("exit 0"), **patience) for rank in (0, 1)]
    for pod in here:
        assert pod.wait() == 203
        assert "torchtally: 2 of 3 pods have joined; missing: the pod with RANK=2\n" in pod.errors
        assert pod.message == "the pod with RANK=2 did not join within 10 s"


def test_a_missing_master_is_named(two: launched.Job) -> None:
    pod = two.start(1, launched.shell("exit 0"), PET_RDZV_CONF="timeout=1")
    assert pod.wait() == 203
    assert re.match(
        r"the pod with RANK=0 does not answer at 127.0.0.1:\d+ \(.*refused\): gave up after 1 s", pod.message
    )


def test_a_pod_that_starts_again_waits_until_the_others_do(two: launched.Job) -> None:
    """Else it would find the notes of those that it met in its former life."""
    run = launched.shell('cat $TORCHTALLY_PODS; echo; [ -n "$GO_ON" ] || sleep 1000')
    master, worker = (two.start(rank, run, **launched.STRICT) for rank in range(2))
    assert [pod.line() for pod in (master, worker)] == ['["demo-master-0", "demo-worker-0"]'] * 2
    worker.kill()
    worker = two.start(1, run, GO_ON="1")
    assert master.wait() == 203
    assert master.message.startswith("demo-worker-0 was started again; ")
    assert worker.process.poll() is None
    master = two.start(0, run, GO_ON="1")
    assert [master.wait(), worker.wait()] == [0, 0]


def test_a_pod_that_is_added_to_a_running_job_fails_nothing_and_takes_part_after_a_restart(
    two: launched.Job, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    work = launched.shell(f"echo of $WORLD_SIZE; until [ -e {end} ]; do sleep 0.1; done")
    scaled = {"WORLD_SIZE": "3", "PET_NNODES": "3"}
    told = "demo-worker-1 was added to a job of 2 pods, which runs and is not elastic: it takes no part"
    pods = two.all(work)
    assert [pod.line() for pod in pods] == ["of 2", "of 2"]
    added = two.start(2, work, **scaled)
    launched.until("it is told", lambda: told in added.errors)
    pods[0].kill()
    assert pods[1].wait() == 203
    # The master is made anew, by the scaled job, and the worker starts again as it was.
    pods = [two.start(0, work, **scaled), two.start(1, work), added]
    assert [pod.line() for pod in pods] == ["of 3"] * 3
    end.touch()
    assert [pod.wait() for pod in pods] == [0] * 3


def test_a_pod_that_is_added_to_a_running_job_ends_with_it(two: launched.Job, tmp_path: Path) -> None:
    end = tmp_path / "end"
    work = launched.shell(f"echo of $WORLD_SIZE; until [ -e {end} ]; do sleep 0.1; done")
    pods = two.all(work)
    assert [pod.line() for pod in pods] == ["of 2", "of 2"]
    added = [two.start(rank, work, WORLD_SIZE="4", PET_NNODES="4") for rank in (2, 3)]
    for pod in added:
        launched.until("it is told", lambda pod=pod: "was added to a job" in pod.errors)
    end.touch()
    assert [pod.wait() for pod in [*pods, *added]] == [0] * 4
    assert "the run is complete, without demo-worker-1" in added[0].errors
    assert "of" not in added[0].rest()


# What a pod's end does to the others.


def test_a_lost_peer_is_named_and_the_end_that_it_caused_is_retried(two: launched.Job, tmp_path: Path) -> None:
    """Whatever the programs make of it: an exit code, or an error that torch records."""
    gone = tmp_path / "gone"
    in_shell = f"[ $RANK = 1 ] && touch {gone} && kill -KILL $$; until [ -e {gone} ]; do sleep 0.1; done; exit 1"
    script = (
        f"if rank == 1: os.system('touch {gone}; kill -KILL $PPID')\n"
        f"os.system('until [ -e {gone} ]; do sleep 0.1; done')\nraise RuntimeError({CLOSED!r})"
    )
    for command in (launched.shell(in_shell), recorded(script)):
        gone.unlink(missing_ok=True)
        master, worker = two.all(command)
        assert [master.wait(), worker.wait()] == [203, 137]
        assert master.message.startswith("rank 1 (demo-worker-0) was ended by signal 9 (SIGKILL); rank 0 (demo-master")


def test_a_cause_with_a_line_of_code_is_apart_from_its_consequence(two: launched.Job, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    body = (
        f"if rank == 1: open({str(gone)!r}, 'w'); raise KeyError('no such key')\n"
        f"os.system('until [ -e {gone} ]; do sleep 0.1; done')\nraise RuntimeError({CLOSED!r})"
    )
    master, worker = two.all(recorded(body))
    assert [master.wait(), worker.wait()] == [203, 1]
    cause, _, consequence = master.message.partition("\nrank 0 (demo-master-0) ")
    assert cause == worker.message
    assert consequence.startswith("failed with exit code 1: RuntimeError: ")


def test_a_worker_is_told_of_the_masters_failure_before_the_store_goes(two: launched.Job, tmp_path: Path) -> None:
    master, worker = two.all(
        launched.shell(f"[ $RANK = 0 ] && kill -KILL $$; until [ -e {tmp_path}/gone ]; do sleep 0.1; done; exit 1")
    )
    launched.until("the worker was told", lambda: "ended by signal 9" in worker.errors)
    assert master.wait() == 137
    (tmp_path / "gone").touch()
    assert worker.wait() == 203
    assert worker.message.startswith("rank 0 (demo-master-0) was ended by signal 9 (SIGKILL); rank 1 (demo-worker")


def test_a_failure_that_is_written_down_keeps_its_code_on_every_pod(two: launched.Job) -> None:
    master, worker = two.all(recorded("raise ValueError(rank)"))
    assert [master.wait(), worker.wait()] == [1, 1]
    assert "ValueError: 0" in master.message and "ValueError: 1" in worker.message


def test_of_failures_that_nobody_explains_the_first_counts(two: launched.Job) -> None:
    started = two.all(launched.shell("exit $((RANK + 5))"), **launched.STRICT)
    codes = [pod.wait() for pod in started]
    assert codes in ([5, 203], [203, 6])
    for pod in started:
        assert pod.message.startswith("rank 0 (" if codes[0] == 5 else "rank 1 (")


def test_a_pod_that_is_stopped_when_its_part_is_done_is_not_waited_for(two: launched.Job) -> None:
    """torchrun's agents would wait for it for 5 minutes after they have succeeded."""
    master = two.start(0, launched.shell("echo done"), **launched.STRICT)
    worker = two.start(1, launched.shell("trap 'kill $!; exit 0' TERM; echo ready; sleep 1000 & wait"))
    assert (master.line(), worker.line()) == ("done", "ready")
    worker.signal(signal.SIGTERM)
    assert (worker.wait(), master.wait()) == (128 + signal.SIGTERM, 0)


@pytest.mark.cold
@pytest.mark.nightly
def test_a_pod_may_end_while_it_still_talks_to_the_store(two: launched.Job) -> None:
    """Python's own end would abort a process with a thread in C++, at times."""
    busy = "\ndef talk(self):\n    while True: self._store.keys.check(['it'])\nheartbeat.Heartbeat._watch = talk\n"
    started = [two.start(rank, launched.shell("exit 0"), entry=START.format(busy)) for rank in range(2)]
    assert [pod.wait() for pod in started] == [0, 0]


def test_the_first_pod_ends_when_the_others_have_passed_the_exit_barrier(three: launched.Job, tmp_path: Path) -> None:
    """The store ends with it. It arrives last here, and the others look at the barrier seconds after it has opened."""
    slow = START.format(
        "import os, time; wait = rendezvous._AgentStore.wait\n"
        "def late(*args):\n"
        "    print('arrived', flush=True)\n"
        f"    while not os.path.exists('{tmp_path}/open'): time.sleep(0.1)\n"
        "    time.sleep(3); wait(*args); print('passed', flush=True)\n"
        "rendezvous._AgentStore.wait = late"
    )
    # And its agent says that it has arrived.
    last = START.format(
        "from pathlib import Path; wait = rendezvous._AgentStore.wait\n"
        f"rendezvous._AgentStore.wait = lambda *args: (wait(*args), Path('{tmp_path}/open').touch())"
    )
    until = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    first = three.start(0, launched.shell(until), entry=last)
    others = [three.start(rank, launched.shell("exit 0"), entry=slow) for rank in (1, 2)]
    assert [pod.line() for pod in others] == ["arrived", "arrived"]
    (tmp_path / "go").touch()
    assert [pod.line() for pod in others] == ["passed", "passed"]
    assert [pod.wait() for pod in (first, *others)] == [0, 0, 0]
    assert "Traceback" not in "".join(pod.errors for pod in (first, *others))


@pytest.mark.parametrize("gone", [0, 1])
def test_a_pod_that_goes_without_a_word_is_named(two: launched.Job, tmp_path: Path, gone: int) -> None:
    started = two.all(launched.shell(f"echo ready; until [ -e {tmp_path}/gone ]; do sleep 0.1; done; exit 1"))
    assert [pod.line() for pod in started] == ["ready", "ready"]
    started[gone].kill()
    (tmp_path / "gone").touch()
    assert started[1 - gone].wait() == 203
    name = ("demo-master-0, which holds the job's store,", "demo-worker-0")[gone]
    assert started[1 - gone].message.startswith(f"{name} went away")


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_pod_that_is_frozen_for_long_is_named(two: launched.Job, frozen: int) -> None:
    started = [
        two.start(rank, launched.shell("echo ready; sleep 1000"), TORCHTALLY_SILENCE_SECONDS="10", **launched.STRICT)
        for rank in range(2)
    ]
    assert [pod.line() for pod in started] == ["ready", "ready"]
    started[frozen].freeze()
    assert started[1 - frozen].wait() == 203
    message = (
        "demo-master-0, which holds the job's store, went away",
        "no heartbeat of demo-worker-0 for 10 s: lost or frozen",
    )
    assert started[1 - frozen].message.startswith(message[frozen])


def test_pods_that_are_frozen_for_a_while_go_on(two: launched.Job, tmp_path: Path) -> None:
    wait = launched.shell(f"echo ready; until [ -e {tmp_path}/go ]; do sleep 0.1; done")
    started = [two.start(rank, wait, TORCHTALLY_SILENCE_SECONDS="10") for rank in range(2)]
    assert [pod.line() for pod in started] == ["ready", "ready"]
    for pod in started:
        stopped = pod.freeze()
        time.sleep(3)  # well below what counts as lost
        launched.thaw(stopped)
    time.sleep(8)  # when the freeze would be counted as a loss
    (tmp_path / "go").touch()
    assert [pod.wait() for pod in started] == [0, 0]


# The end of a rank's program.

PROGRAM = """
import atexit, sys, threading, time, torch
from torchtally.pod import failure

class Object:
    def __del__(self):
        print("the object is taken apart")

def work():
    time.sleep(0.2)  # the program is at its end by then
    print("the thread has ended")

kept = Object()
atexit.register(print, "the handler has run")
threading.Thread(target=work).start()
sys.stdout.write("buffered\\n")
failure.exit_rank(int(sys.argv[1]))
"""


@pytest.mark.cold
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, ["buffered", "the thread has ended", "the handler has run"]),
        pytest.param(3, ["buffered"], marks=pytest.mark.nightly),
    ],
)
def test_a_success_waits_for_threads_and_handlers_and_no_end_takes_objects_apart(code: int, said: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(code)], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout.splitlines(), ended.stderr) == (code, said, "")
