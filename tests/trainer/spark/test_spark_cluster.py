"""Tasks through pyspark's TorchDistributor: on this machine, and on a standalone cluster of one master, two workers."""

import hashlib
import importlib.util
import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import launched
import proofs
import psutil
import pytest
import sparkcluster
from commands import TORCHTALLY, last_line
from launched import LIMIT, until
from task_runs import reported

from torchtally import events

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="no pyspark (tools/env.sh --all-extras)"),
]

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = ["fashion-mnist", "--batch-size", "1000", "--hidden", "16"]


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """With nothing of a job, nor of a Spark, in it."""
    found = launched.environment().items()
    return {name: value for name, value in found if not name.startswith(("SPARK_", "PYSPARK_"))}


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[sparkcluster.Cluster]:
    folder = tmp_path_factory.mktemp("spark")
    (folder / "tmp").mkdir()
    started = sparkcluster.Cluster(folder, 2, environment | {"TMPDIR": str(folder / "tmp")})
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
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "300",
    }
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    return [*start, "--master", cluster.master, *options, *arguments]


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
            until("the end of an epoch", lambda: any(saved.glob("epoch-*2-*")) or process.poll() is not None)
            assert process.poll() is None, err.read_text()
            disturb(process)
            code = process.wait(LIMIT)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, code, out.read_text(), err.read_text())


def proven(*logs: Path) -> dict[str, Any]:
    """What `torchtally verify` finds in these logs, which has to be proven."""
    found = subprocess.run([*TORCHTALLY, "verify", "--json", *logs], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    verdict: dict[str, Any] = json.loads(found.stdout)
    return verdict


def consumed(verdict: dict[str, Any], phase: str) -> list[int]:
    """By each rank in the first epoch."""
    own = [
        line for line in verdict["tallies"] if (line["phase"], line["epoch"]) == (phase, 1) and line["rank"] != "all"
    ]
    return [line["consumed"] for line in sorted(own, key=lambda line: line["rank"])]


def assert_one_sentence(ended: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr and "\tat " not in ended.stderr
    *_, sentence = ended.stderr.splitlines()
    assert sentence.startswith("torchtally: ")
    for part in parts:
        assert part in sentence


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
def test_each_executor_consumes_its_half(
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

    until("the executors' logs", logged)
    executors = proven(*cluster.logs(run["run"]))
    assert consumed(executors, "train") == [30000, 30000]
    assert consumed(executors, "test") == [5000, 5000]
    names = {line["pod"] for line in executors["tallies"] if line["rank"] != "all"}
    assert len(names) == 2 and all(re.fullmatch(r".+-exec-\d+", name) for name in names)
    (tmp_path / "log").write_text(ended.stdout)
    assert proven(tmp_path / "log")["tallies"] == executors["tallies"]

    [model] = cluster.folder.glob("work/*/*/*/output/model.pt")
    assert run["model"] == f"sha256:{hashlib.sha256(model.read_bytes()).hexdigest()}"
    assert proofs.lines(model.with_name("proof.json"))[-1] == run
    assert re.search(r"/proc/self/cwd/output of .+-exec-\d+, a folder that the driver does not share", ended.stderr)


@pytest.mark.timeout(1200)
def test_a_dead_executor_is_named_and_the_next_start_goes_on(
    environment: dict[str, str], fashion_mnist: Path, tmp_path: Path, cluster: sparkcluster.Cluster
) -> None:
    arguments = ["--processes", "2", *SMALL, "--epochs", "40", "--data", str(fashion_mnist)]
    ended = disturbed(environment, tmp_path, cluster, lambda driver: cluster.executors()[1].kill(), *arguments)
    assert_one_sentence(ended, 1, "Spark: ", "output/spark.log")
    until("its ranks to end", lambda: not ranks_of(cluster.folder))

    ended = spark(environment, tmp_path, cluster, *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (resumed,) = reported(ended.stdout, events.Resumed)
    assert resumed.epoch >= 2
    (tmp_path / "again").write_text(ended.stdout)
    proven(tmp_path / "out", tmp_path / "again")


@pytest.mark.timeout(1200)
def test_a_stopped_driver_ends_its_ranks_on_the_cluster(
    environment: dict[str, str], fashion_mnist: Path, tmp_path: Path, cluster: sparkcluster.Cluster
) -> None:
    arguments = ["--processes", "2", *SMALL, "--epochs", "100000", "--data", str(fashion_mnist)]
    ended = disturbed(environment, tmp_path, cluster, lambda driver: driver.send_signal(signal.SIGTERM), *arguments)
    assert_one_sentence(ended, 143, "the driver was stopped by signal 15, and all ranks with it")
    until("its ranks to end", lambda: not ranks_of(cluster.folder))


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
    until("its ranks to end", lambda: not ranks_of(tmp_path))


def test_what_ended_the_ranks_reaches_the_driver(environment: dict[str, str], tmp_path: Path) -> None:
    ended = spark(environment, tmp_path, None, "--processes", "2", *SMALL, "--data", str(tmp_path / "nowhere"))
    assert_one_sentence(ended, 1, "Spark: TorchDistributor failed", "output/spark.log")
    assert "nowhere" in ended.stdout


def test_there_is_no_java(environment: dict[str, str], tmp_path: Path) -> None:
    ended = spark(environment | {"JAVA_HOME": "/nowhere"}, tmp_path, None, *SMALL)
    assert_one_sentence(ended, 1, "Spark: [JAVA_GATEWAY_EXITED]", "output/spark.log")
    assert "/nowhere" in (tmp_path / "output/spark.log").read_text()


def ranks_of(folder: Path) -> list[list[str]]:
    """Commands of those that run a script of TorchDistributor's, which stands among its temporary files."""
    own = [each.info["cmdline"] or [""] for each in psutil.process_iter(["cmdline"])]
    return [each for each in own if each[-1].startswith(str(folder)) and each[-1].endswith("train.py")]
