"""torchtally_jobs on logs in files and folders."""

import gzip
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import bruteforce
import msgspec
import pytest
import seen
import told

from torchtally import events
from torchtally.commands import verify
from torchtally.jobs import files, job_status, tables, watching
from torchtally.jobs.job_outcome import Standing
from torchtally.record.record import Record

JOBS = Path(__file__).parents[2] / "scripts/torchtally_jobs.py"
Ask = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "120")
    time.tzset()


def written(tmp_path: Path, lines: list[str]) -> str:
    path = tmp_path / "demo.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def drawn(lines: list[str], width: int, standing: Standing, seconds: float) -> list[str]:
    """What `status` shows of these lines."""
    record = Record()
    for line in lines:
        pod, text = files.parted(Path("demo.log"), line)
        record.add_line(pod, text)
    found = job_status.of("demo", record.snapshot, at=told.BEGAN + seconds, standing=standing)
    tables.console(width, text := io.StringIO()).print(tables.whole(found, "utf-8", width))
    return [line.rstrip() for line in text.getvalue().splitlines()]


SHOWN = {
    120: [
        "demo  running",
        "run 3f9c2a7b10de, t, 2 ranks, attempt 2",
        "epoch 2 of 2, step 1 of 3 (67%)",
        "━" * 53,
        "1 min 39 s left, 1,200 samples/s, loss 0.25, checkpoint 20 s ago (epoch 1, position 40)",
        "",
        "pod            ranks  does    epoch                     samples/s  restarts",
        "demo-master-0  0      trains  ━━━━━━━━                        600         1",
        "demo-worker-0  1      trains  ━━━━━━━━                        300         1",
        "",
        "restarts: 2 of pods, by 1 fault",
        "  03:04:06  demo-worker-0 ended without a word, as after SIGKILL, a deletion, or the loss of its node"
        "; 1 other with it",
        "",
        "no epoch is complete",
    ],
    40: [
        "demo  running",
        "run 3f9c2a7b10de, t, 2 ranks, attempt 2",
        "epoch 2 of 2, step 1 of 3 (67%)",
        "━" * 26 + "╸",
        "1 min 39 s left, 1,200 samples/s, loss",
        "0.25, checkpoint 20 s ago (epoch 1,",
        "position 40)",
        "",
        "pod            does    epoch       re.",
        "demo-master-0  trains  ━━━           1",
        "demo-worker-0  trains  ━━━           1",
        "",
        "restarts: 2 of pods, by 1 fault",
        "  03:04:06  demo-worker-0 ended without",
        "a word, as after SIGKILL, a deletion, or",
        "the loss of its node; 1 other with it",
        "",
        "no epoch is complete",
    ],
}


@pytest.mark.parametrize("columns", SHOWN)
def test_a_run_that_goes_on_after_a_kill(columns: int) -> None:
    assert drawn([*told.KILLED, *told.RESUMED], columns, Standing.RUNNING, 27) == SHOWN[columns]


@pytest.mark.parametrize("most", [2, 4])
def test_a_pod_that_was_deleted_has_restarted_unless_it_may_have_joined_an_elastic_job(most: int) -> None:
    """The log of its first start is gone with it."""
    kept = [line for line in told.KILLED if told.WORKER not in line.partition("]")[0]]
    lines = [line.replace('"max_pods":2', f'"max_pods":{most}') for line in [*kept, *told.RESUMED]]
    shown = "\n".join(drawn(lines, 120, Standing.RUNNING, 27))
    assert ("600         1\ndemo-worker-0" in shown, "300         1\n" in shown) == (True, most == 2)
    assert ("restarts: 2 of pods, by 1 fault\n  03:04:20  demo-worker-0 ended without a word" in shown) is (most == 2)


def test_a_failed_job_says_first_that_and_why_it_failed() -> None:
    why = "rank 0 (demo-master-0) failed with exit code 1: KeyError: 'x'"
    end = told.line(28, told.MASTER, events.Ended(code=1, kind="known", cause=why))
    shown = drawn([*told.KILLED, *told.RESUMED, end], 120, Standing.FAILED, 60)
    assert shown[:4] == [
        "demo  stopped",
        "run 3f9c2a7b10de, t, 2 ranks, attempt 2",
        f"demo-master-0 ended with 1: {why}",
        "reached epoch 2 of 2, step 1 of 3 (67%)",
    ]
    text = "\n".join(shown)
    assert "left" not in text and "samples/s, " not in text and text.count("KeyError") == 1


def test_one_fault_is_one_also_where_the_clock_of_a_pod_is_wrong() -> None:
    def shifted(line: str) -> str:
        prefix, _, text = line.partition("] ")
        read = events.read(text) if prefix == f"[{told.WORKER}" else None
        return f"{prefix}] {events.line(msgspec.structs.replace(read, time=read.time + 7200))}" if read else line

    shown = drawn([*map(shifted, [*told.KILLED, *told.RESUMED])], 120, Standing.RUNNING, 27)
    assert "restarts: 2 of pods, by 1 fault" in shown


SLOW = told.straggler(28, 1, told.WORKER, loses_in="data_wait", seconds=0.31, others=0.0004)


def test_the_pod_that_the_ranks_name_is_shown_with_the_reason_until_they_name_none() -> None:
    lines = [*told.KILLED, *told.RESUMED, told.progress(27, told.WORKER, 1, 2, 1)]
    reason = "slowest: demo-worker-0: its steps wait 0.31 s for data (the others: 0.4 ms)"
    assert reason in drawn([*lines, SLOW], 120, Standing.RUNNING, 29)
    over = told.straggler(29, 1, None)
    assert not [line for line in drawn([*lines, SLOW, over], 120, Standing.RUNNING, 30) if "its steps" in line]
    of_an_earlier_start = told.straggler(6, 0, told.WORKER, loses_in="compute", seconds=0.5, others=0.1)
    shown = drawn([*told.KILLED, of_an_earlier_start, *told.RESUMED], 120, Standing.RUNNING, 30)
    assert not [line for line in shown if "its steps" in line]


def test_a_straggler_for_programs(tmp_path: Path, ask: Ask) -> None:
    _, said = ask("status", written(tmp_path, [*told.KILLED, *told.RESUMED, SLOW]), "--json")
    found = json.loads(said)["straggler"]
    assert (found["slow"], found["loses_in"], found["seconds"]) == (told.WORKER, "data_wait", 0.31)


def test_a_pod_whose_ranks_hang_says_where_they_stand_until_they_go_on() -> None:
    stands = "rank 1 stands in load (data.py:7)"
    hangs = told.line(28, told.WORKER, events.Stuck(seconds=240.0, stands=stands, stacks=None))
    goes_on = told.progress(29, told.WORKER, 1, 2, 2)
    continued = told.line(29, told.WORKER, events.Continued())
    for more, does in ([], f"takes no batch: {stands}"), ([goes_on], "trains"), ([continued], "trains"):
        shown = drawn([*told.RESUMED, hangs, *more], 120, Standing.RUNNING, 30)
        assert does in next(line for line in shown if line.startswith(told.WORKER))


def test_what_a_preflight_has_found_is_a_note() -> None:
    slow = "demo-worker-0 on node a computes 49 GFLOP/s, and the median of the other pods is 100"
    values = {"bandwidth": 1.0, "latency": 1.0, "all_reduce_bandwidth": 1.0, "all_reduce_latency": 1.0}
    found = told.line(23, told.WORKER, events.Preflight(node="a", matrix=49e9, **values, slow=slow))
    assert f"warning: preflight: {slow}" in drawn([*told.RESUMED, found], 120, Standing.RUNNING, 29)


def test_each_step_of_a_start() -> None:
    record, does = Record(), []
    for line in [*told.start(0)[:3], *told.KILLED[6:8], told.progress(6, told.MASTER, 0, 1, 2)]:
        record.add_line(told.MASTER, line.removeprefix(f"[{told.MASTER}] "))
        does.append(job_status.does(record.snapshot.pods[0].life))
    steps = ["waits for the other pods", "loads its data", "makes its first step", "makes its first step", "trains"]
    assert does == [*steps, "trains"]


ALL = [*told.KILLED, *told.RESUMED, *told.PROVED]


def test_a_run_that_is_proved(tmp_path: Path, ask: Ask) -> None:
    path = written(tmp_path, ALL)
    for command in ("status", "watch"):
        status, said = ask(command, path)
        assert status == 0 and "✓ the proof holds: run 3f9c2a7b10de, 2 ranks, train 2 epochs" in said
        status, said = ask(command, path, "--json")
        found = json.loads(said)
        assert (status, found["run"], found["standing"]) == (0, "3f9c2a7b10de", "proved")


def test_a_page_is_written(tmp_path: Path, ask: Ask) -> None:
    path, page = written(tmp_path, ALL), tmp_path / "demo.html"
    assert ask("report", path, page) == (0, f"proved: see {page.as_uri()}")
    assert "3f9c2a7b10de" in page.read_text()
    status, said = ask("report", path, tmp_path / "nowhere/demo.html")
    assert status == 2 and "cannot write" in said


FAULT = "train.py:18 (Digits, 40 samples): each rank is handed all 40 samples in the same order, and no sampler "


@pytest.mark.parametrize(
    ("lines", "status", "standing", "sentence"),
    [
        (seen.lines(), 0, "observed", "observed: 2 ranks, 2 passes, no fault in how samples are handed out"),
        (seen.lines(seen.ALL), 1, "faulty", FAULT),
        (seen.lines(seen.RIGHT[:1]), 3, "incomplete", "incomplete: 2 ranks, 2 passes, and lines are missing"),
    ],
    ids=["observed", "faulty", "incomplete"],
)
def test_a_program_that_keeps_no_account(
    tmp_path: Path, ask: Ask, lines: list[str], status: int, standing: str, sentence: str
) -> None:
    path, page = written(tmp_path, [*told.start(0), *lines, *ENDS]), tmp_path / "demo.html"
    for command in ("status", "watch"):
        found, said = ask(command, path)
        assert found == status and sentence in said and "✓" not in said
        assert "demo.log complete" in said and "demo-master-0 0 has ended" in said
        found, said = ask(command, path, "--json")
        overview = json.loads(said)
        assert (found, overview["standing"], overview["world"]) == (status, standing, 2)
        assert sentence in overview["proof"]
    assert ask("report", path, page) == (0, f"{standing}: see {page.as_uri()}")
    assert f"{standing.capitalize()}</strong>" in page.read_text()


def ends(at: float) -> list[str]:
    """Of both pods, which have succeeded."""
    return [told.line(at, pod, events.Ended(code=0, kind=None, cause=None)) for pod in told.PODS]


ENDS = ends(9)


def test_a_worker_that_fails_when_the_master_has_succeeded_leaves_an_observation_incomplete(
    tmp_path: Path, ask: Ask
) -> None:
    def ended(kind: str) -> list[str]:
        failed = told.line(9, told.WORKER, events.Ended(code=1, kind=kind, cause="rank 1 has failed"))
        return [*told.start(0), *seen.lines(), ENDS[0], failed]

    found, said = ask("status", written(tmp_path, ended("known")))
    assert found == 3 and "incomplete: 2 ranks, 2 passes, and lines are missing" in said
    again = [*told.start(10), *seen.lines(), *ends(19)]
    for lines in (ended("consequence"), [*ended("known"), *again]):
        assert ask("status", written(tmp_path, lines))[0] == 0


def test_a_worker_that_is_killed_after_its_passes_leaves_an_observation_incomplete(tmp_path: Path, ask: Ask) -> None:
    killed = [*told.start(0), *seen.lines(), ENDS[0]]
    path = written(tmp_path, killed)
    found, said = ask("status", path)
    assert found == 3 and "incomplete: 2 ranks, 2 passes, and lines are missing" in said
    with redirect_stdout(text := io.StringIO()):
        assert verify.main([path, "--json"]) == 3
    missing = json.loads(text.getvalue())["observation"]["missing"]
    assert missing == [f"{told.WORKER} has started, and no log has its end: it runs, or was killed"]
    again = [*told.start(10), *seen.lines(began=seen.BEGAN + 9000, at=seen.BEGAN / 1000 + 12), *ends(19)]
    assert ask("status", written(tmp_path, [*killed, *again]))[0] == 0


def test_the_cause_in_the_log_is_shown(tmp_path: Path, ask: Ask) -> None:
    """That of the pod which knows it, and not that of a pod which has only lost the others."""
    ends = [
        told.line(9, pod, events.Ended(code=code, kind=kind, cause=cause))
        for pod, code, kind, cause in (
            (told.PODS[0], 203, "consequence", "another pod went away"),
            (told.PODS[1], 3, "known", "rank 1: 125 samples were lost"),
        )
    ]
    path = written(tmp_path, [*told.KILLED, *ends])
    assert f"{told.PODS[1]} ended with 3: rank 1: 125 samples were lost" in ask("status", path)[1]
    ends[1] = told.line(
        9, told.PODS[1], events.Ended(code=7, kind="unexplained", cause="rank 1 failed with exit code 7")
    )
    path = written(tmp_path, [*told.KILLED, *ends])
    assert f"{told.PODS[1]} ended with 7: rank 1 failed with exit code 7" in ask("status", path)[1]


def test_a_pod_that_refuses_its_options_has_ended(tmp_path: Path, ask: Ask) -> None:
    refused = events.Ended(code=2, kind="known", cause="argument --lr: '0' must be a number above 0")
    said = ask("status", written(tmp_path, [told.line(0, pod, refused) for pod in told.PODS]))[1]
    assert "demo.log stopped" in said and f"{told.PODS[0]} ended with 2: {refused.cause}" in said


def test_a_program_without_an_account_has_ended(tmp_path: Path, ask: Ask) -> None:
    said = ask("status", written(tmp_path, [*told.start(0), *ENDS]))[1]
    assert "demo.log complete" in said and "starting" not in said


def test_an_observed_program_so_far() -> None:
    lines = [*told.start(0), *seen.lines()]
    assert drawn(lines, 120, Standing.RUNNING, 27)[-1] == "no fault so far: 2 passes observed"
    said = drawn([*told.start(0), *seen.lines(seen.ALL)], 300, Standing.RUNNING, 27)[-1]
    assert said.startswith(FAULT)


def test_a_proof_does_not_hide_a_fault_that_is_observed(tmp_path: Path, ask: Ask) -> None:
    """An evaluation that no account keeps."""
    for lines, status, sentence in ((seen.lines(), 0, "observed: 2 ranks"), (seen.lines(seen.ALL), 1, f"✗ {FAULT}")):
        path = written(tmp_path, [*ALL, *lines])
        found, said = ask("status", path)
        assert found == status and sentence in said
        assert ask("report", path, tmp_path / "demo.html")[0] == 0
        assert "<h2>Observed</h2>" in (tmp_path / "demo.html").read_text()


def test_a_log_that_says_so_is_not_believed(tmp_path: Path, ask: Ask) -> None:
    """The lines state that nothing is lost, and the digest of one shows what is."""
    wrong = bruteforce.run(
        world=2, plan=told.PLAN, run="3f9c2a7b10de", consume=lambda p, e, rank, shard: shard[rank == 1 :]
    )
    lines = [{**line, "lost": 0, "duplicated": 0, "lost_indices": [], "duplicated_indices": []} for line in wrong]
    path = written(tmp_path, [*told.KILLED, *told.RESUMED, *told.tallied(lines), *told.PROVED[-3:]])
    status, said = ask("status", path)
    assert status == 1 and "✗ disproved: lines contradict" in said and "✓" not in said


def test_the_proof_of_an_earlier_run_is_not_that_of_the_newest(tmp_path: Path, ask: Ask) -> None:
    """The newest has no tally line yet."""
    path = written(tmp_path, [*ALL, *(line.replace("3f9c2a7b10de", "0a1b2c3d4e5f") for line in told.KILLED)])
    status, said = ask("status", path)
    assert status == 3 and "run 0a1b2c3d4e5f, t, 2 ranks" in said and "✓" not in said
    assert "1 of 2 runs is proved: 3f9c2a7b10de; not proved: 0a1b2c3d4e5f (it has no whole line)" in said
    status, said = ask("report", path, tmp_path / "demo.html")
    assert status == 0 and said.startswith("incomplete: ")
    assert "… Incomplete" in (tmp_path / "demo.html").read_text()


def test_a_log_whose_end_is_missing(tmp_path: Path, ask: Ask) -> None:
    status, said = ask("status", written(tmp_path, [*told.KILLED, *told.RESUMED]), "--json")
    found = json.loads(said)
    assert (status, found["standing"], found["state"], found["epoch"], found["step"]) == (
        3,
        "incomplete",
        "running",
        2,
        1,
    )
    assert [pod["samples_per_second"] for pod in found["pods"]] == [600.0, 300.0]
    assert {restart["pod"]: restart["code"] for restart in found["restarts"]} == {told.MASTER: 203, told.WORKER: None}


def test_a_folder_with_a_log_of_each_pod(tmp_path: Path, ask: Ask) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for pod in told.PODS:
        own = [line.removeprefix(f"[{pod}] ") for line in ALL if line.startswith(f"[{pod}] ")]
        stamped = [f"2026-01-02T03:04:{at % 60:02}.000000001Z stdout F {line}\n" for at, line in enumerate(own)]
        (folder / f"{pod}.log").write_text("".join(stamped))
    status, said = ask("status", folder)
    assert status == 0 and "the proof holds" in said


def test_a_log_is_watched_while_it_grows(tmp_path: Path) -> None:
    path = written(tmp_path, told.KILLED)
    command = [sys.executable, str(JOBS), "watch", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TZ": "UTC"}) as watching:
        assert watching.stdout
        first = watching.stdout.readline()
        assert "demo.log is stopped; epoch 1 of 2, step 2 of 3" in first
        with Path(path).open("a") as log:
            log.write("".join(f"{line}\n" for line in told.RESUMED))
            log.flush()
            while "attempt 2; epoch 2 of 2, step 1 of 3" not in watching.stdout.readline():
                pass
            log.write("".join(f"{line}\n" for line in told.PROVED))
        rest = watching.stdout.read()
        assert watching.wait() == 0
    assert "the proof holds" in rest


def test_a_watched_start_says_once_what_its_pods_do() -> None:
    record, lines = Record(), []
    for text in ("", *told.KILLED[:6]):
        pod, line = files.parted(Path("demo.log"), text)
        record.add_line(pod, line)
        found = job_status.of("demo.log", record.snapshot, at=told.BEGAN, standing=Standing.RUNNING)
        lines.append(tables.line(found))
    assert lines[0] == "demo.log is starting; no pod has reported"
    assert lines[1] == "demo.log is starting; demo-master-0 waits for the other pods"
    assert lines[-1] == "demo.log is starting; demo-master-0 makes its first step, as does another pod"
    out = io.StringIO()
    with redirect_stdout(out):
        screen = watching.Screen(as_json=False)
        for _ in range(3):
            screen._at = -watching._LINE  # the time for another line has come
            screen.show(found)
    assert out.getvalue().count("is starting") == 1


def test_a_pipe_gets_whole_lines(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TZ": "UTC"}
    command = [sys.executable, str(JOBS), "status", written(tmp_path, told.KILLED + told.RESUMED)]
    said = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False).stdout
    assert SHOWN[120][11] in said.splitlines()
    assert max(map(len, said.splitlines())) < 200


def test_the_end_of_a_watch_is_what_the_verifier_says(tmp_path: Path, ask: Ask) -> None:
    """The log's last line has no end, and contradicts one before it."""
    contradicts = next(line for line in ALL if '"consumed":30' in line).replace('"consumed":30', '"consumed":29')
    path = Path(written(tmp_path, ALL))
    with path.open("a") as log:
        log.write(contradicts)
    assert ask("watch", path)[0] == verify.main([str(path)]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["status", "./nowhere"], "cannot read nowhere: No such file or directory"),
        (["status", "{tmp_path}/cut.gz"], "cannot read {tmp_path}/cut.gz: Compressed file ended"),
        (["watch", "{tmp_path}/empty"], "the folder {tmp_path}/empty holds no file"),
        (["fetch", "./logs", "out"], "fetch copies from a job in the cluster, and ./logs names logs"),
        (["fetch", "demo", "{tmp_path}"], "{tmp_path} exists and is no empty folder: name another one"),
    ],
)
def test_a_mistake_is_a_sentence(arguments: list[str], said: str, tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a line")[:-9])
    status, found = ask(*(each.format(tmp_path=tmp_path) for each in arguments))
    assert status == 2 and found.startswith(f"torchtally jobs: {said.format(tmp_path=tmp_path)}")


def test_what_is_no_log_is_incomplete(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "a.log").write_bytes(b"\xff\x00 no log\nTORCHTALLY {\n")
    assert ask("status", tmp_path / "a.log")[0] == 3


def test_thousands_of_pods_make_few_rows() -> None:
    pods = tuple(job_status.PodRow(name=f"demo-worker-{at}", ranks=(at,), does="trains") for at in range(1000))
    odd = job_status.PodRow(name="demo-worker-1000", ranks=(1000,), does="ended with 1")
    found = job_status.Overview(
        job="demo", state="running", standing=Standing.RUNNING, proof="", at=0.0, pods=(*pods, odd)
    )
    tables.console(80, text := io.StringIO()).print(tables.whole(found, "ascii", 80))
    lines = text.getvalue().splitlines()
    assert "1001 pods; most of them: trains" in lines and len(lines) < 12
    assert any("demo-worker-1000" in line for line in lines)


# Imports once, and then is each of these programs, with each of these outputs.
PROGRAMS = """
import os, runpy, sys
path, log, *programs = sys.argv[1:]
sys.path.insert(0, os.path.dirname(path))
import torchtally.commands.jobs
reader, without_reader = os.pipe()
os.close(reader)
for output in (without_reader, os.open("/dev/full", os.O_WRONLY)):
    for each in programs:
        if (program := os.fork()) == 0:
            os.dup2(output, 1)
            sys.argv = [path, *each.split(), log]
            runpy.run_path(path, run_name="__main__")
        assert os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) == 1, each
"""


@pytest.mark.cold  # a fork of another process has its standard output, whatever that was
def test_an_output_that_is_full_or_that_nobody_reads_ends_with_1(tmp_path: Path) -> None:
    programs = ["status", "watch", "watch --json"]
    command = [sys.executable, "-c", PROGRAMS, str(JOBS), written(tmp_path, ALL), *programs]
    ended = subprocess.run(command, capture_output=True, text=True)
    said = "torchtally jobs: the result cannot be written to standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (0, said * len(programs))  # to nobody, nothing needs to be said
