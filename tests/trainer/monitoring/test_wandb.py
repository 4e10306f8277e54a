"""What the client of Weights & Biases has of a run: offline, and with a server that never answers."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import logs_its_loss
from accounts import run as run_ranks

from torchtally.accounting.ledger.tally import Run
from torchtally.monitoring import wandb_run
from torchtally.monitoring.tracker import Recorder, Status

internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")

BLOCK, HEAD, KIND_AT = 32768, 7, 6  # of LevelDB's log format, in which the client keeps what `wandb sync` sends


def records(output: Path) -> Iterator[Any]:
    """What `wandb sync` would send of the only run in this folder."""
    [file] = output.glob("wandb/offline-run-*/*.wandb")
    data, at, record = file.read_bytes(), HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        end = at + HEAD + int.from_bytes(data[at + 4 : at + KIND_AT], "little")
        record += data[at + HEAD : end]
        if data[at + KIND_AT] in (1, 4):  # a whole record, or the last part of one
            yield internal.Record.FromString(record)
            record = b""
        at = end


def values(items: Any) -> dict[str, Any]:
    return {each.key or "/".join(each.nested_key): json.loads(each.value_json) for each in items}


def test_rank_0_alone_records_an_own_loop_with_its_numbers_and_its_proof(tmp_path: Path) -> None:
    variables = {"TORCHTALLY_WANDB": "tests", "WANDB_MODE": "offline", "TORCHTALLY_OUTPUT": str(tmp_path)}
    first, second = run_ranks(2, logs_its_loss, variables)
    assert (first["code"], second["code"]) == (0, 0), first["err"]
    found = [*records(tmp_path)]
    [run] = [each.run for each in found if each.HasField("run")]
    assert (run.project, run.run_id) == ("tests", first["lines"][0]["run"])
    assert run.display_name == f"own-{run.run_id}"
    configured: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for each in found:
        configured |= values(each.config.update)
        summary |= values(each.summary.update)
    kept = {name: configured[name] for name in ("seed", "plan", "data", "world", "attempt")}
    assert kept == {"seed": 7, "plan": {"train": 2}, "data": "squares", "world": 2, "attempt": 0}
    rows = [values(each.history.item) for each in found if each.HasField("history")]
    losses = [(row["step"], row["train_loss"]) for row in rows if "train_loss" in row]
    assert losses[0] == (1, 1.0) and losses[-1] == (6, pytest.approx(1 / 3))
    assert summary["torchtally.proof"] == "every sample as the contract says"
    [kept_lines] = tmp_path.glob("wandb/offline-run-*/files/lines.json")
    assert [line["phase"] for line in json.loads(kept_lines.read_text())["lines"]] == ["train", "train", "all"]
    assert [each.exit.exit_code for each in found if each.HasField("exit")] == [0]


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_a_run_that_is_interrupted_is_recorded_as_such(
    status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setitem(Recorder.patience, status, 300.0)
    monkeypatch.setattr(wandb_run, "_SECONDS", 300.0)
    place = {"attempt": 1, "pod": "p", "plan": {"train": 3}, "rank": 0, "world": 4, "seed": 0}
    record = Recorder(wandb_run.WandbRun("tests", Run(run="aaa", task="toy", data="", **place), {}, tmp_path))
    record.metrics(7, train_loss=1.0)
    record.end(status)
    found = [*records(tmp_path)]
    assert [each.run.run_id for each in found if each.HasField("run")] == ["aaa"]
    assert [each.exit.exit_code for each in found if each.HasField("exit")] == [1]
    assert len([each for each in found if each.HasField("preempting")]) == (status == "KILLED")
    assert 7 in [values(each.history.item).get("step") for each in found]


def ends_beside(silent: int, output: Path) -> None:
    """An own loop whose server takes connections and never answers."""
    Recorder.patience["FINISHED"] = 0.5
    logs_its_loss(
        {
            "TORCHTALLY_WANDB": "tests",
            "TORCHTALLY_OUTPUT": str(output),
            "WANDB_BASE_URL": f"http://127.0.0.1:{silent}",
            "WANDB_API_KEY": 40 * "a",
        }
    )


def test_a_server_that_never_answers_keeps_nobody(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (ended,) = run_ranks(1, ends_beside, silent.getsockname()[1], tmp_path)
    assert ended["code"] == 0, ended["err"]
    assert ended["err"].count("Weights & Biases did not accept the complete record of the run within") == 1
