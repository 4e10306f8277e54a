"""`make bench-gpu` without a GPU: its results become rows, and what fails is named."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from bench import goals, goals_gpu, gpu, pack, processes, report, results
from bench.measure import gpu as throughput
from bench.measure import gpu_exact, gpu_ranks
from bench.results import Results
from bench.sample import Sample
from torchtally.accounting import cuda

GPU = {"processor": "A", "cores": 2, "memory_gb": 8, "gpu": "H", "gpu_memory_gb": 80}


def add(found: Results, round: int, measure: str, value: float, **case: str | int) -> None:
    found.add(Sample(measure=measure, case=case, unit="", better="higher", value=value), round, 0.1)


def whole() -> Results:
    """What three rounds have measured if all goals are reached, with a loop by hand that is slightly faster."""
    found = Results(began="then", seconds=1.0, commit="c", machine=dict(GPU), versions={"torch": "2"})
    for round in (1, 2, 3):
        for task, tools in throughput.TOOLS.items():
            for tool in tools:
                value = {"torchtally": 995.0, "by hand": 1000.0, "blog": 40.0}.get(tool, 500.0)
                add(found, round, "throughput", round * value, task=task, world=1, tool=tool)
    for measure in ("order", "digest"):
        add(found, 1, measure, 900.0, by="the device")
        add(found, 1, measure, 90.0, by="numpy, one core")
    for what, value in {"replayed": 300.0, "plain": 100.0}.items():
        add(found, 1, "captured step", value, what=what)
    for tool in ("torchtally", "blog"):
        add(found, 1, "throughput", 100.0, task="gpt-ddp", world=2, tool=tool, backend="gloo")
    found.notes[gpu_ranks.NOTE] = "Duplicate GPU detected"
    return found


def row(found: Results | None, begin: str, target: str = "") -> str:
    lines = goals_gpu.text(found).splitlines() if found else goals.text(whole()).splitlines()
    (line,) = [line for line in lines if line.startswith(f"| {begin}") and target in line]
    return line


def test_a_rehearsal_on_cpus_reaches_no_goal() -> None:
    found = whole()
    del found.machine["gpu"], found.machine["gpu_memory_gb"]
    text = goals_gpu.text(found)
    assert "✓" not in text and text.count("| rehearsed |") == len(list(goals_gpu.rows(found)))


def test_results_of_a_gpu_are_rows_of_the_goals() -> None:
    rows = list(goals_gpu.rows(whole()))
    assert [each[-1] for each in rows] == ["✓"] * len(rows)
    assert "| 1,990 [995–2,985]: 24.9× [24.9–24.9] | the blog's loop 80.0 [40.0–120] |" in row(
        whole(), "fashion", "20×"
    )
    assert ": 0.99× [0.99–0.99]" in row(whole(), "fashion", "by hand")  # the goal is 0.99, and this is 0.995
    assert "| 900: 10.0× | numpy, one core 90.0 |" in row(whole(), "order of samples")
    assert "over gloo; NCCL with two ranks on one GPU: Duplicate GPU detected" in row(whole(), "a small gpt")
    missed = whole()
    for series in missed.of("throughput", tool="torchtally"):
        series.values[:] = [each * 0.98 * 500 / 995 for each in series.values]
    assert {each[-1] for each in list(goals_gpu.rows(missed))[:6]} == {"–"}


def test_without_a_gpu_each_of_its_goals_says_so() -> None:
    rows = list(goals_gpu.rows(None))
    assert len(rows) == len(list(goals_gpu.rows(whole())))
    assert {each[2] for each in rows} == {"not measured: no GPU"} and {each[-1] for each in rows} == {"–"}


def test_a_goal_of_which_a_program_has_failed_is_not_reached_and_names_it() -> None:
    def without(tool: str, task: str, note: str) -> str:
        found = whole()
        found.series = [each for each in found.series if each.case.get("tool") != tool or each.case["task"] != task]
        found.notes[f"gpu {tool} {task}"] = note
        begin = "gpt, a custom loop" if task == "gpt" else "fashion-mnist, one"
        return row(found, begin, "20×" if tool == "torchtally" and task != "gpt" else "")

    failed = without("lightning", "gpt", "failed: it ended with 1: ValueError: a | b")
    assert "; Lightning failed: it ended with 1: ValueError: a \\| b | – | – |" in failed
    assert without("torchtally", "fashion-mnist", "failed: x").endswith("| failed: x | – | – | – |")
    assert "Lightning left out from round 1 on" in without("lightning", "gpt", "left out from round 1 on")
    unequal, later, late = whole(), whole(), whole()
    unequal.series = [each for each in unequal.series if each.measure != "order"]
    unequal.notes["gpu_exact order"] = "failed: sample number 7 is 3, and numpy's 4"
    assert "| failed: sample number 7 is 3, and numpy's 4 | – | – | – |" in row(unequal, "order of samples")
    later.notes["gpu_exact dropout"] = "failed: 2.weight differs"
    assert "gpu_exact dropout failed: 2.weight differs | – | – |" in row(later, "fashion-mnist, steps")
    late.notes["gpu lightning gpt"] = "left out from round 3 on"  # which two rounds have measured
    assert row(late, "gpt, a custom loop").endswith("| ✓ |")


def test_a_rehearsal_is_no_result_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "ON_GPU", tmp_path)
    assert results.newest_on_gpu() is None
    whole().save(tmp_path / "1.json")
    rehearsed = whole()
    del rehearsed.machine["gpu"]
    rehearsed.save(tmp_path / "2.json")
    assert results.newest_on_gpu() == whole()
    page = report.with_goals(f"{report._BEGIN}{report._END}", whole(), results.newest_on_gpu())
    assert "\n\nOn a GPU: " in page and "H (80 GB), A, 2 cores" in page


class Programs:
    """In place of what `gpu` runs: answers by the program's words."""

    def __init__(self, **failures: str) -> None:
        self.failures, self.ran = failures, []  # type: tuple[dict[str, str], list[str]]

    def run(self, command: list[str], environment: Any, seconds: float) -> processes.Ended:
        words = [command[2].removeprefix("bench.measure."), *command[3:]]
        self.ran.append(" ".join(words))
        case = {"tool": words[min(1, len(words) - 1)], "task": words[-1], "world": 1}
        told = json.dumps({"measure": "throughput", "case": case, "unit": "", "better": "higher", "value": 2.0})
        return processes.Ended(self.failures.get(str(case["tool"])), f"SAMPLE {told}\n", "")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of results; PyTorch's answer is that of a GPU."""
    told = {"gpu": "H", "gpu_memory_gb": 80, "driver": "1", "torch": "2.11.0", "cuda": "13", "nccl": "2"}
    monkeypatch.setattr(gpu, "_DEVICE", f"print('{json.dumps(told)}')")
    monkeypatch.setattr(gpu, "ON_GPU", tmp_path)
    before = dict(os.environ)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def test_a_program_that_fails_is_named_and_the_others_are_measured(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = Programs(lightning="it ended with 1: KeyError: 'x'")
    monkeypatch.setattr(processes, "run", programs.run)
    assert gpu.main([]) == 1
    (path,) = kept.glob("*.json")
    found = results.load(path)
    assert (found.machine["gpu"], found.versions["torch"]) == ("H", "2.11.0")
    assert found.notes["gpu lightning gpt"] == "failed: it ended with 1: KeyError: 'x'"
    assert not found.of("throughput", tool="lightning")
    assert len(found.one("throughput", tool="accelerate", task="gpt").values) == 3  # type: ignore[union-attr]
    assert programs.ran.count("gpu_exact order") == 1
    printed = capsys.readouterr()
    assert "gpu lightning gpt: failed" in printed.err and "KeyError" in printed.out


def test_without_a_gpu_nothing_is_written(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    none = {"gpu": None, "gpu_memory_gb": 0, "driver": "none", "torch": "2", "cuda": "13", "nccl": "2"}
    monkeypatch.setattr(gpu, "_DEVICE", f"import json; print(json.dumps({none}))")
    assert gpu.main([]) == 1
    assert not [*kept.iterdir()]
    assert "PyTorch 2 (CUDA 13) finds no GPU (driver: none)" in capsys.readouterr().err
    assert gpu.main(["tpu"]) == 2


def test_the_first_cause_of_a_failure_is_named() -> None:
    raised = "noise\n[rank1]: Traceback\n[rank1]: torch.DistBackendError: NCCL error in: x, invalid usage\n"
    assert processes.cause(raised) == "torch.DistBackendError: NCCL error in: x, invalid usage"
    last = f"{raised}[rank1]: Last error:\n[rank1]: Duplicate GPU detected : rank 1 and rank 0\nsubprocess.Error: y\n"
    assert processes.cause(last) == "Duplicate GPU detected : rank 1 and rank 0"
    assert processes.cause("first\nthe order differs\n====\n") == "the order differs"
    assert processes.cause("usage: x\ncli.py: error: what is -y\nlast\n") == "cli.py: error: what is -y"
    assert processes.cause("") == "it printed no error"


def test_a_program_over_its_time_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    script = f"""
import subprocess, pathlib, time
own = subprocess.Popen(["sleep", "100"], start_new_session=True)
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(own.pid))
print("SAMPLE", flush=True)
time.sleep(100)
"""
    ended = processes.run([sys.executable, "-S", "-c", script], os.environ, 3)
    assert (ended.failure, ended.output) == ("it had not ended after 3 s", "SAMPLE\n")
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(int((tmp_path / "pid").read_text())).status() == psutil.STATUS_ZOMBIE


def test_a_difference_on_the_device_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_exact, "_INDICES", {"cpu": 1 << 12})
    here, right = torch.device("cpu"), cuda.permute
    gpu_exact.order(here)

    def wrong(positions: torch.Tensor, n: int, seed: int, epoch: int) -> torch.Tensor:
        found = right(positions, n, seed, epoch)
        found[100] += 1
        return found

    monkeypatch.setattr(cuda, "permute", wrong)
    with pytest.raises(SystemExit, match=r"sample number 100 is \d+, and numpy's \d+"):
        gpu_exact.order(here)
    monkeypatch.setattr(cuda, "_multiply", lambda a, b: a)
    with pytest.raises(SystemExit, match=r"the digest of samples 0 to 4096 of .* is .*, and numpy's"):
        gpu_exact.digests(here)


def test_wheels_are_those_that_do_not_come_with_pytorch() -> None:
    names = pack._needed(("lightning", "accelerate", *pack._own())) - pack._needed(("torch", "torchvision"))
    assert {"lightning", "accelerate", "loky", "pooch", "platformdirs", "prometheus-client"} <= names
    assert not {"torch", "numpy", "sympy", "filelock", "triton", "nvidia-nccl-cu13"} & names
