"""`make bench-gpu` without a GPU: its results become rows, and what fails is named."""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import made
import psutil
import pytest

from bench import goals, goals_gpu, gpu, pack, processes, report, results
from bench.measure import gpu as throughput
from bench.measure import gpu_ranks
from bench.results import Results


def whole() -> Results:
    """What three rounds have measured if all goals are reached, with a loop by hand that is slightly faster."""
    found = made.results(gpu="H", gpu_memory_gb=80)
    for task, tools in throughput.TOOLS.items():
        for tool in tools:
            value = {"torchtally": 995.0, "by hand": 1000.0, "blog": 40.0}.get(tool, 500.0)
            made.add(found, "throughput", [value, 2 * value, 3 * value], task=task, world=1, tool=tool)
    for what, value in {"replayed": 300.0, "plain": 100.0}.items():
        made.add(found, "captured step", [value], what=what)
    for tool in ("torchtally", "blog"):
        made.add(found, "throughput", [100.0], task="gpt-ddp", world=2, tool=tool, backend="gloo")
    found.notes[gpu_ranks.NOTE] = "Duplicate GPU detected"
    return found


def row(found: Results, begin: str, target: str = "") -> str:
    (line,) = [line for line in goals_gpu.text(found).splitlines() if line.startswith(f"| {begin}") and target in line]
    return line


def test_a_rehearsal_on_cpus_reaches_no_goal_and_is_no_result_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed = whole()
    del rehearsed.machine["gpu"], rehearsed.machine["gpu_memory_gb"]
    text = goals_gpu.text(rehearsed)
    assert "✓" not in text and text.count("| rehearsed |") == len(list(goals_gpu.rows(rehearsed)))

    monkeypatch.setattr(results, "ON_GPU", tmp_path)
    rehearsed.save(tmp_path / "2.json")
    assert results.newest_on_gpu() is None
    whole().save(tmp_path / "1.json")
    assert results.newest_on_gpu() == whole()


def test_results_of_a_gpu_are_rows_of_the_goals() -> None:
    assert {each[-1] for each in goals_gpu.rows(whole())} == {"✓"}
    assert "| 1,990 [995–2,985]: 24.9× [24.9–24.9] | the blog's loop 80.0 [40.0–120] |" in row(
        whole(), "fashion", "20×"
    )
    assert ": 0.99× [0.99–0.99]" in row(whole(), "fashion", "by hand")  # the goal is 0.99, and this is 0.995
    assert "over gloo; NCCL with two ranks on one GPU: Duplicate GPU detected" in row(whole(), "a small gpt")
    missed = whole()
    for series in missed.of("throughput", tool="torchtally"):
        series.values[:] = [each * 0.98 * 500 / 995 for each in series.values]
    assert {each[-1] for each in list(goals_gpu.rows(missed))[:6]} == {"–"}
    unmeasured = list(goals_gpu.rows(None))
    assert len(unmeasured) == len(list(goals_gpu.rows(whole())))
    assert {each[2] for each in unmeasured} == {"not measured: no GPU"} and {each[-1] for each in unmeasured} == {"–"}


@pytest.mark.parametrize(
    ("lacks", "program", "note", "of", "said"),
    [
        (
            {"tool": "lightning", "task": "gpt"},
            "gpu lightning gpt",
            "failed: it ended with 1: ValueError: a | b",
            ("gpt, a custom loop", ""),
            "; Lightning failed: it ended with 1: ValueError: a \\| b | – | – |",
        ),
        (
            {"tool": "torchtally", "task": "fashion-mnist"},
            "gpu torchtally fashion-mnist",
            "failed: x",
            ("fashion-mnist, one", "20×"),
            "| failed: x | – | – | – |",
        ),
        (
            {"tool": "lightning", "task": "gpt"},
            "gpu lightning gpt",
            "left out from round 1 on",
            ("gpt, a custom loop", ""),
            "; Lightning left out from round 1 on | – | – |",
        ),
        # Which two rounds have measured.
        ({"tool": ""}, "gpu lightning gpt", "left out from round 3 on", ("gpt, a custom loop", ""), "| ✓ |"),
        (
            {"tool": ""},
            "gpu_exact dropout",
            "failed: 2.weight differs",
            ("fashion-mnist, steps", ""),
            "gpu_exact dropout failed: 2.weight differs | – | – |",
        ),
    ],
)
def test_a_goal_of_which_a_program_has_failed_is_not_reached_and_names_it(
    lacks: dict[str, str], program: str, note: str, of: tuple[str, str], said: str
) -> None:
    found = whole()
    found.series = [each for each in found.series if not lacks.items() <= each.case.items()]
    found.notes[program] = note
    assert row(found, *of).endswith(said)


def test_the_page_tells_the_machine_of_the_goals() -> None:
    page = report.with_goals(report.PAGE.read_text(), whole(), whole())
    assert "\n\nOn a GPU: " in page and "H (80 GB), A, 2 cores" in page
    assert goals.text(whole(), whole()) in page


def test_a_program_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], environment: Any, seconds: float) -> processes.Ended:
        module, *words = command[2:]
        case = {"tool": words[0] if words else module, "task": words[-1] if words else module, "world": 1}
        told = json.dumps({"measure": "throughput", "case": case, "unit": "", "better": "higher", "value": 2.0})
        failure = "it ended with 1: KeyError: 'x'" if "lightning" in words else None
        return processes.Ended(failure, f"SAMPLE {told}\n", "")

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(processes, "run", run)
    monkeypatch.setattr(pack, "MADE", tmp_path)
    assert gpu.main(["cpu"]) == 1
    (path,) = tmp_path.glob("rehearsed/*.json")
    found = results.load(path)
    assert found.notes["gpu lightning gpt"] == "failed: it ended with 1: KeyError: 'x'"
    assert not found.of("throughput", tool="lightning")
    assert found.of("throughput", tool="accelerate", task="gpt") and found.of("throughput", tool="captured")
    printed = capsys.readouterr()
    assert "gpu lightning gpt: failed" in printed.err and "KeyError" in printed.out


def test_without_a_gpu_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    monkeypatch.setattr(gpu, "ON_GPU", tmp_path)
    assert gpu.main([]) == 1
    assert not [*tmp_path.iterdir()]
    assert "finds no GPU (driver: " in capsys.readouterr().err
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


def test_wheels_are_those_that_do_not_come_with_pytorch() -> None:
    names = pack._needed(("lightning", "accelerate", *pack._own())) - pack._needed(("torch", "torchvision"))
    assert {"lightning", "accelerate", "loky", "pooch", "platformdirs", "prometheus-client"} <= names
    assert not {"torch", "numpy", "sympy", "filelock", "triton", "nvidia-nccl-cu13"} & names
