"""Tasks through pyspark's TorchDistributor: on this machine, and on a standalone cluster of one master, two workers."""

import hashlib
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import proofs
import psutil
import pytest
import ranks
import sparkcluster
from torch.distributed import TCPStore

from torchtally import cli, events
from torchtally.environment import Process
from torchtally.errors import FAILED, LOST, Lost, Refused
from torchtally.pod import failure
from torchtally.spark import executor, java
from torchtally.spark.output import RankOutput

VERIFY = Path(__file__).parents[2] / "scripts/verify_shards.py"
LIMIT = 400  # seconds
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = ["fashion-mnist", "--batch-size", "1000", "--hidden", "16"]


def clean() -> dict[str, str]:
    """An environment with nothing of a job, nor of a Spark, in it."""
    other = ("PET_", "MASTER_", "TORCH", "SPARK_", "PYSPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(other)}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        kept.pop(name, None)
    return {**kept, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def environment() -> dict[str, str]:
    return clean()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sparkcluster.Cluster]:
    folder = tmp_path_factory.mktemp("spark")
    (folder / "tmp").mkdir()
    started = sparkcluster.Cluster(folder, 2, clean() | {"TMPDIR": str(folder / "tmp")})
    yield started
    started.stop()


def command(cluster: sparkcluster.Cluster | None, *arguments: str) -> list[str]:
    start = [sys.executable, "-m", "torchtally.cli", "spark", "--conf", f"spark.driver.extraJavaOptions={QUICK_START}"]
    if cluster is None:
        return [*start, *arguments]
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_START,
        # As if it were another machine: what the driver's own sends, executors leave out of their logs.
        "spark.driver.host": "127.0.0.2",
        "spark.driver.bindAddress": "0.0.0.0",
        # The Worker's word of what ended an executor may come long after the connection broke.
        "spark.standalone.executorRemoveDelayOnDisconnection": "60s",
    }
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    return [*start, "--master", cluster.master, "--wait", "300", *options, *arguments]


def spark(
    environment: dict[str, str], folder: Path, cluster: sparkcluster.Cluster | None, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run `torchtally spark` in `folder`."""
    return subprocess.run(
        command(cluster, *arguments), env=environment, capture_output=True, text=True, timeout=LIMIT, cwd=folder
    )


def disturbed(
    environment: dict[str, str],
    folder: Path,
    cluster: sparkcluster.Cluster,
    disturb: Callable[[subprocess.Popen[bytes]], None],
    *arguments: str,
) -> subprocess.CompletedProcess[str]:
    """Run `torchtally spark` in `folder`, and `disturb` its driver or what it started after the second epoch."""
    out, err = folder / "out", folder / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            command(cluster, *arguments), env=environment, stdout=stdout, stderr=stderr, cwd=folder
        )
        try:
            saved = folder / "output/checkpoints"
            sparkcluster.wait_for(
                "the end of an epoch", lambda: any(saved.glob("epoch-*2-*")) or process.poll() is not None
            )
            assert process.poll() is None, err.read_text()
            disturb(process)
            code = process.wait(LIMIT)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, code, out.read_text(), err.read_text())


def proven(*logs: Path) -> dict[str, Any]:
    """What scripts/verify_shards.py finds in these logs, which has to be proven."""
    found = subprocess.run([sys.executable, VERIFY, "--json", *logs], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    verdict: dict[str, Any] = json.loads(found.stdout)
    return verdict


def consumed(verdict: dict[str, Any], phase: str) -> list[int]:
    """By each rank in the first epoch."""
    own = [
        line for line in verdict["tallies"] if (line["phase"], line["epoch"]) == (phase, 1) and line["rank"] != "all"
    ]
    return [line["consumed"] for line in sorted(own, key=lambda line: line["rank"])]


def last_line(text: str) -> dict[str, Any]:
    (found,) = [line for line in text.splitlines() if line.startswith("TORCHTALLY {") and '"phase":"all"' in line]
    line: dict[str, Any] = json.loads(found.partition(" ")[2])
    return line


def assert_one_sentence(ended: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout and "\tat " not in ended.stderr + ended.stdout
    *_, sentence = ended.stderr.splitlines()
    assert sentence.startswith("torchtally: ")
    for part in parts:
        assert part in sentence


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.cold), 2])
def test_on_this_machine(environment: dict[str, str], fashion_mnist: Path, tmp_path: Path, processes: int) -> None:
    arguments = ["--processes", str(processes), *SMALL, "--epochs", "1", "--data", str(fashion_mnist)]
    if processes == 2:
        arguments += ["--mlflow", "by Spark"]
    ended = spark(environment, tmp_path, None, *arguments)
    assert ended.returncode == 0, ended.stderr
    (tmp_path / "log").write_text(ended.stdout)
    verdict = proven(tmp_path / "log")
    assert consumed(verdict, "train") == [60000 // processes] * processes
    assert "✓ every sample exactly once" in ended.stdout
    sha256 = hashlib.sha256((tmp_path / "output/model.pt").read_bytes()).hexdigest()
    assert last_line(ended.stdout)["model"] == f"sha256:{sha256}"
    assert "WARN" not in ended.stdout + ended.stderr
    if processes == 2:
        with closing(sqlite3.connect(tmp_path / "output/mlflow.db")) as record:
            (proof,) = record.execute("SELECT value FROM tags WHERE key = 'torchtally.proof'").fetchone()
        assert proof == "every sample as the contract says"

    again = spark(environment | {"PATH": ""}, tmp_path, None, *arguments)  # complete, so without Java
    assert again.returncode == 0, again.stderr
    assert last_line(again.stdout) == last_line(ended.stdout)


@pytest.mark.timeout(1200)
def test_each_executor_consumes_its_half_and_the_outputs_come_back(
    environment: dict[str, str], fashion_mnist: Path, tmp_path: Path, cluster: sparkcluster.Cluster
) -> None:
    # A path that leads each process into its own folder: the executors do not see the driver's.
    output = ["--output", "/proc/self/cwd/output"]
    arguments = ["--processes", "2", *SMALL, "--epochs", "1", "--data", str(fashion_mnist), *output]
    ended = spark(environment, tmp_path, cluster, *arguments)
    assert ended.returncode == 0, ended.stderr
    run = last_line(ended.stdout)

    def logged() -> bool:
        """What executors print comes to their logs by another way, and later, than what they return."""
        logs = [log.read_text() for log in cluster.logs(run["run"])]
        return sum('"phase":"test"' in log for log in logs) == 2 and any('"phase":"all"' in log for log in logs)

    sparkcluster.wait_for("the executors' logs", logged)
    executors = proven(*cluster.logs(run["run"]))
    assert consumed(executors, "train") == [30000, 30000]
    assert consumed(executors, "test") == [5000, 5000]
    names = {line["pod"] for line in executors["tallies"] if line["rank"] != "all"}
    assert len(names) == 2 and all(re.fullmatch(r".+-exec-\d+", name) for name in names)
    (tmp_path / "log").write_text(ended.stdout)
    assert proven(tmp_path / "log")["tallies"] == executors["tallies"]

    model, proof = (tmp_path / "output" / name for name in ("model.pt", "proof.json"))
    assert run["model"] == f"sha256:{hashlib.sha256(model.read_bytes()).hexdigest()}"
    assert proofs.lines(proof)[-1] == run
    assert not list((cluster.folder / "tmp").glob("torchtally-*"))

    again = spark(environment | {"PATH": ""}, tmp_path, cluster, *arguments)  # complete, so without Java
    assert again.returncode == 0, again.stderr
    assert last_line(again.stdout) == run


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_dead_executor_is_named_and_the_next_start_goes_on(
    environment: dict[str, str], fashion_mnist: Path, tmp_path: Path, cluster: sparkcluster.Cluster
) -> None:
    arguments = ["--processes", "2", *SMALL, "--epochs", "40", "--data", str(fashion_mnist)]
    ended = disturbed(environment, tmp_path, cluster, lambda driver: cluster.executors()[1].kill(), *arguments)
    assert_one_sentence(ended, 203, "-exec-", " of rank ", " went away (Command exited with code 137)", "another start")
    sparkcluster.wait_for("its ranks to end", lambda: not ranks_of(cluster.folder))

    ended = spark(environment, tmp_path, cluster, *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    reported = [record.event for record in events.in_lines(ended.stdout.splitlines())]
    (resumed,) = (event for event in reported if isinstance(event, events.Resumed))
    assert resumed.epoch >= 2
    (tmp_path / "again").write_text(ended.stdout)
    proven(tmp_path / "out", tmp_path / "again")


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_stopped_driver_ends_its_ranks_on_the_cluster(
    environment: dict[str, str], fashion_mnist: Path, tmp_path: Path, cluster: sparkcluster.Cluster
) -> None:
    arguments = ["--processes", "2", *SMALL, "--epochs", "100000", "--data", str(fashion_mnist)]
    ended = disturbed(environment, tmp_path, cluster, lambda driver: driver.send_signal(signal.SIGTERM), *arguments)
    assert_one_sentence(ended, 143, "the driver was stopped by signal 15, and all ranks with it")
    sparkcluster.wait_for("its ranks to end", lambda: not ranks_of(cluster.folder))


@pytest.mark.nightly
def test_more_processes_than_slots(environment: dict[str, str], tmp_path: Path) -> None:
    ended = spark(environment, tmp_path, None, "--master", "local[2]", "--processes", "3", "--wait", "1", *SMALL)
    assert_one_sentence(ended, 2, "--processes 3 must be at most 2, the slots that local[2] offers")


@pytest.mark.nightly
def test_executors_without_torchtally(environment: dict[str, str], tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    bare = environment | {"PYSPARK_PYTHON": str(tmp_path / "bare/bin/python")}
    ended = spark(bare, tmp_path, None, "--master", "local[1]", *SMALL)
    assert_one_sentence(ended, 2, "the executor ", "lacks torchtally, torch, pandas, pyarrow")


@pytest.mark.nightly
@pytest.mark.cold  # its ranks are found by their command lines
def test_a_stopped_driver_ends_its_ranks(environment: dict[str, str], fashion_mnist: Path, tmp_path: Path) -> None:
    arguments = [*SMALL, "--epochs", "100000", "--data", str(fashion_mnist)]
    process = subprocess.Popen(
        command(None, *arguments),
        env=environment | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("train "):
                assert ranks_of(tmp_path)
                break
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert_one_sentence(subprocess.CompletedProcess([], process.returncode, out, err), 143, "stopped by signal 15")
    sparkcluster.wait_for("its ranks to end", lambda: not ranks_of(tmp_path))


@pytest.mark.nightly
def test_what_ended_the_ranks_reaches_the_driver(environment: dict[str, str], tmp_path: Path) -> None:
    ended = spark(environment, tmp_path, None, "--processes", "2", *SMALL, "--data", str(tmp_path / "nowhere"))
    assert_one_sentence(ended, 2, "nowhere")
    assert ended.stderr.splitlines()[-1].count("rank 0 (") == 1


def ranks_of(folder: Path) -> list[list[str]]:
    """Commands of those that run a script of TorchDistributor's, which stands among its temporary files."""
    own = [each.info["cmdline"] or [""] for each in psutil.process_iter(["cmdline"])]
    return [each for each in own if each[-1].startswith(str(folder)) and each[-1].endswith("train.py")]


def test_no_master_answers(environment: dict[str, str], tmp_path: Path) -> None:
    url = f"spark://127.0.0.1:{ranks.free_port()}"
    ended = spark(environment, tmp_path, None, "--master", url, "--wait", "0.1", *SMALL)
    assert_one_sentence(ended, 203, f"no Spark master answers at {url} within 0.1 s", "refused")


@pytest.mark.parametrize(
    ("arguments", "env", "sentence"),
    [
        (["--master", "spark://host"], {}, "--master spark://host must be spark://HOST:PORT"),
        (
            [],
            {"PATH": "/nowhere", "JAVA_HOME": ""},
            "Spark needs Java 17 or newer: `java` is not on PATH, and JAVA_HOME is not set",
        ),
        ([], {"JAVA_HOME": "/nowhere"}, "JAVA_HOME=/nowhere"),
        ([], {"TORCHTALLY_DEVICE": "cuda"}, "TORCHTALLY_DEVICE=cuda needs --gpu"),
        (["--gpu", "--processes", "9"], {}, "--gpu needs a GPU for each of --processes 9"),
    ],
)
def test_refusals(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    env: dict[str, str],
    sentence: str,
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["spark", *arguments, "fashion-mnist", "--output", str(tmp_path)]) == 2
    assert sentence in capsys.readouterr().err


def test_pyspark_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["spark", "fashion-mnist", "--output", str(tmp_path)]) == 2
    assert "pip install 'torchtally[spark]'" in capsys.readouterr().err


def test_java_that_is_too_old(tmp_path: Path) -> None:
    program = tmp_path / "java"
    for version in ('"11.0.2" 2019-01-15', '"1.8.0_292"'):
        program.write_text(f"#!/bin/sh\necho 'openjdk version {version}' >&2\n")
        program.chmod(0o755)
        with pytest.raises(Refused, match=f"Java 17 or newer; PATH has {program}, version (11|8)$"):
            java.check(sparkcluster.HOME, {"PATH": str(tmp_path)})


@pytest.mark.parametrize("setting", ["spark.executor.memory", "=1g"])
def test_a_setting_that_is_none(capsys: pytest.CaptureFixture[str], setting: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["spark", "--conf", setting, "fashion-mnist"])
    assert f"{setting!r} must be KEY=VALUE" in capsys.readouterr().err


def lost_and_failed(rank: int, world: int, store: object, port: int, folder: Path) -> tuple[int, str]:
    """Rank 1 fails, and rank 0 knows only that it lost another one."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(folder / f"{rank}.json")
    failure.record(ValueError("no such thing") if rank else Lost("another rank went away"))
    process = Process(rank=rank, local_rank=0, local_world=1, world=world, run="r", attempt=0, pod=f"host-exec-{rank}")
    return executor.find_cause(process, FAILED if rank else LOST)


def test_rank_0_learns_what_ended_another_rank(tmp_path: Path) -> None:
    first, _ = ranks.run(2, lost_and_failed, ranks.free_port(), tmp_path)
    assert first == (FAILED, "rank 1 (host-exec-1) failed with exit code 1: ValueError: no such thing")


def test_rank_0_fails_before_those_that_it_takes_along(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    port = ranks.free_port()
    of_rank_0 = [TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)]

    def end() -> None:
        of_rank_0[0].wait(["ended/1"], timedelta(seconds=LIMIT))  # rank 1 has connected, then
        of_rank_0.clear()

    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "1", "WORLD_SIZE": "2"}
    for name, value in {**env, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "1.json")}.items():
        monkeypatch.setenv(name, value)
    failure.record(Lost("another rank went away"))
    monkeypatch.setattr(executor, "_CAUSE_SECONDS", 5)
    monkeypatch.setattr(os, "_exit", sys.exit)
    began = time.monotonic()
    Thread(target=end).start()
    with pytest.raises(SystemExit, match=str(LOST)):
        executor.find_cause(
            Process(rank=1, local_rank=0, local_world=1, world=2, run="r", attempt=0, pod="host-exec-1"), LOST
        )
    assert time.monotonic() - began >= 10


def test_lines_that_did_not_come_are_made_up_for() -> None:
    out = io.StringIO()
    output = RankOutput(out)
    for piece in ("a", ' row\nTORCHTALLY {"cut', '\nTORCHTALLY-EVENT {"cut', "\nlast"):
        output.write(piece)
    assert out.getvalue() == "a row\n"
    output.add_missing('a row\na row\nTORCHTALLY {"cut":1}\n')
    assert out.getvalue() == 'a row\na row\nTORCHTALLY {"cut":1}\n'


def test_the_agent_s_report_of_a_rank_is_not_passed_on() -> None:
    out = io.StringIO()
    begin, rule = "Traceback (most recent call last):\n", "=" * 60 + "\n"
    own = f'a sentence\n{begin}  File "mine.py", line 1\n{begin}{begin}  File "yours.py"\nError\n'
    RankOutput(out).write(f'{own}{begin}  File "<frozen runpy>", line 198\n...\n{rule}{begin}  File\n{rule}after\n')
    assert out.getvalue() == f"{own}after\n"


def test_an_executor_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    url = "http://10.0.0.1:8081/logPage/?appId=app-1-0000&executorId=3&logType=stdout"
    assert executor.name({"SPARK_LOG_URL_STDOUT": url}) == "host-exec-3"  # standalone
    assert executor.name({}) == "host"
    monkeypatch.setattr("socket.gethostname", lambda: "torchtally-93-exec-1")
    assert executor.name({"SPARK_EXECUTOR_ID": "1"}) == "torchtally-93-exec-1"  # Kubernetes


def test_files_that_are_too_large_to_come_back(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "model.pt").write_bytes(b"12345")
    assert executor.collect_files(tmp_path, 5) == {"files": {"model.pt": b"12345"}}
    assert executor.collect_files(tmp_path, 4)["left_at"].endswith(f":{tmp_path}")
