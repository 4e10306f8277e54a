"""The program: what it reads, its options, its exit status, and never a traceback."""

import gzip
import json
import lzma
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import bruteforce
import msgspec
import numpy
import pytest

from torchtally.commands import verify
from torchtally.verifier import report
from torchtally.verifier.log import Log
from torchtally.verifier.verdict import judge

SCRIPT = Path(__file__).parents[2] / "scripts/verify_shards.py"
LINES = bruteforce.run()
LAST = bruteforce.text([bruteforce.last(LINES)])
TEXT = bruteforce.text(LINES) + LAST


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "demo.log"
    path.write_text(TEXT)
    return path


def script(*args: object, stdin: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, encoding="utf-8", **options)
    assert "Traceback" not in result.stderr
    return result


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The last line of standard error, where bad input ends in exit status 2."""
    assert verify.main([str(arg) for arg in args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()[-1].partition(" [T")[0]


def test_a_file_a_folder_and_standard_input(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [bruteforce.text([line for line in LINES if line["rank"] in own]) for own in ((0, "all"), (1,), (2, 3))]
    ranks[0] += LAST
    folder = tmp_path / "logs"
    (folder / "deeper").mkdir(parents=True)
    for name, text in zip(("master.log", "deeper/one.log", "deeper/two.log"), ranks, strict=True):
        (folder / name).write_text(text)
    ended = script("-", stdin=TEXT)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "✓ the proof holds: run 3f9c2a7b10de, 4 ranks, train 2 epochs, test 2 epochs" in ended.stdout
    for paths in ([log], [folder], [folder / "deeper", log]):
        assert verify.main([*map(str, paths)]) == 0
        assert capsys.readouterr().out == ended.stdout


def test_a_log_that_is_compressed_or_in_utf_16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (compressed := tmp_path / "0.log.20261126-080000.gz").write_bytes(gzip.compress(TEXT.encode()))
    (powershell := tmp_path / "powershell.log").write_text(TEXT, encoding="utf-16")
    for path in (compressed, powershell):
        assert verify.main([str(path)]) == 0
        capsys.readouterr()
    compressed.write_bytes(compressed.read_bytes()[:-9])
    assert f"cannot read {compressed}: Compressed file ended" in refused(capsys, compressed)
    (other := tmp_path / "demo.log.xz").write_bytes(lzma.compress(TEXT.encode()))
    assert f"{other} is compressed (xz), and a log must be text or gzip: decompress it" in refused(capsys, other)


def test_bytes_that_are_no_text_are_no_matter(log: Path) -> None:
    log.write_bytes(b"\xff\xfe\x00 50%\r" + TEXT.encode())
    assert verify.main([str(log)]) == 0


def test_a_proof_that_does_not_hold(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(TEXT.replace('"consumed":15', '"consumed":16', 1))
    assert verify.main([str(log)]) == 1
    assert "✗ train epoch 1: rank 0 consumed 16, but expected" in capsys.readouterr().out
    log.write_text("hello\n")
    assert verify.main([str(log)]) == 3
    assert f"no tally line in {log}\n" in capsys.readouterr().out


def test_options_reach_the_verdict(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main([str(log), "--expect-per-pod", "15"]) == 0
    assert verify.main([str(log), "--expect-per-pod", "16"]) == 1
    log.write_text(TEXT + bruteforce.text(bruteforce.run(run="another")[:-1]))
    assert verify.main([str(log)]) == 3
    another = bruteforce.run(run="another")
    log.write_text(TEXT + bruteforce.text([*another, bruteforce.last(another)]))
    assert verify.main([str(log)]) == 0
    assert verify.main([str(log), "--run", "another"]) == 0
    capsys.readouterr()
    assert verify.main([str(log), "--run", "another", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "another"


def test_bad_input(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lists = "; `torchtally verify --help` lists the options"
    either = (
        "torchtally verify: give either --job NAME or logs to read (files, folders, or - for standard input)" + lists
    )
    assert refused(capsys) == either
    assert refused(capsys, log, "--job", "demo") == either
    assert refused(capsys, log, "-n", "default") == f"torchtally verify: -n, --context, and --wait go with --job{lists}"
    missing = tmp_path / "none.log"
    assert refused(capsys, missing) == f"torchtally verify: cannot read {missing}: No such file or directory"
    (tmp_path / "empty").mkdir()
    said = f"torchtally verify: the folder {tmp_path / 'empty'} holds no file: name the folder with the pods' logs"
    assert refused(capsys, tmp_path / "empty") == said
    said = "torchtally verify: no tally line of run another; found: 3f9c2a7b10de (21 lines)"
    assert refused(capsys, log, "--run", "another") == said
    assert refused(capsys, log, "--expect-per-pod", "-1").endswith(f"--expect-per-pod is -1, must be 0 or more{lists}")
    assert "invalid int value: 'many'" in refused(capsys, log, "--expect-per-pod", "many")


def test_help_tells_the_exit_status_and_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        verify.main(["--help"])
    told = capsys.readouterr().out
    assert "exit status: 0" in told and '"tallies"' in told
    fields = {word.strip('"') for word in told.split("--json prints")[1].replace(",", " ").split() if word[0] == '"'}
    assert json.loads(report.as_json(judge(Log()))).keys() <= fields


def test_a_terminal_that_cannot_show_it() -> None:
    pods = TEXT.replace("demo-master-0", "dämon")
    shown = script("-", stdin=pods, env={**os.environ, "PYTHONIOENCODING": "ascii"}).stdout
    assert "  ok: every sample exactly once" in shown and shown.isascii()
    assert "d\\xe4mon" in shown


def test_colour_on_a_terminal_only(log: Path) -> None:
    assert "\033[" not in script(log).stdout
    ours, theirs = pty.openpty()
    child = subprocess.Popen([sys.executable, str(SCRIPT), str(log)], stdout=theirs, stdin=theirs)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # the other end has closed
        pass
    os.close(ours)
    assert child.wait(timeout=300) == 0
    assert "\033[32m✓\033[0m the proof holds".encode() in shown


def test_a_reader_that_leaves_early(log: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = subprocess.run([sys.executable, str(SCRIPT), str(log)], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (child.returncode, child.stderr) == (1, "")


@pytest.mark.parametrize(("how", "cause"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_an_output_that_cannot_be_written(log: Path, how: str, cause: str) -> None:
    command = ["sh", "-c", f'exec "$@" {how}', "sh", sys.executable, str(SCRIPT), str(log)]
    child = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    said = f"torchtally verify: the result cannot be written to standard output: {cause}\n"
    assert (child.returncode, child.stderr) == (1, said)


def without_site(packages: Path, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", str(SCRIPT), *map(str, args)]
    return subprocess.run(command, env={"PYTHONPATH": str(packages)}, capture_output=True, text=True)


def test_two_packages_are_all_it_needs(log: Path, tmp_path: Path) -> None:
    (tmp_path / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    said = "torchtally verify: the Python package numpy is missing: run `make scripts`, then `. .venv/bin/activate`\n"
    assert without_site(tmp_path, log).stderr == said
    installed = Path(numpy.__file__).parents[1]
    for name in "numpy", "numpy.libs":
        if (installed / name).exists():
            (tmp_path / name).symlink_to(installed / name)
    result = without_site(tmp_path, log)
    assert (result.returncode, result.stderr) == (0, "")
    result = without_site(tmp_path, "--job", "demo")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("torchtally verify: the Python package ")

    def late(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
        return shard[1:] if rank == 1 else [*shard, shard[0], shard[0]] if rank == 2 else shard

    said = "note: the Python package sympy is missing, so lost and duplicated samples are not named"
    lines = bruteforce.run(plan={"train": 1}, consume=late)
    log.write_text(bruteforce.text(lines))
    honest = without_site(tmp_path, log)
    assert (honest.returncode, honest.stderr) == (1, "")
    assert said in honest.stdout and "digest does not match" not in honest.stdout
    for line in lines:
        line |= {"lost": 0, "duplicated": 0, "expected": line["consumed"], "lost_indices": [], "duplicated_indices": []}
    log.write_text(bruteforce.text(lines))
    forged = without_site(tmp_path, log)
    assert (forged.returncode, forged.stderr) == (1, "")
    assert forged.stdout.count("digest does not match: other samples were consumed than the line reports\n") == 3
    assert said in forged.stdout


def test_a_proof_that_holds_loads_neither_torch_nor_sympy(log: Path) -> None:
    command = [sys.executable, "-X", "importtime", str(SCRIPT), str(log)]
    loaded = subprocess.run(command, capture_output=True, text=True).stderr
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in loaded.splitlines()}
    assert "numpy" in names and not names & {"torch", "sympy"}
