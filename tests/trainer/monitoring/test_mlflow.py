"""What MLflow is told of a run: by a real server, one that is away, one that never answers, and none at all."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import objectstore
import pytest
import ranks
import torch
from accounts import logs_its_loss
from accounts import run as run_ranks
from commands import alone
from launched import LIMIT, until

from torchtally import tasks
from torchtally.accounting.ledger.tally import Run
from torchtally.monitoring.mlflow_run import MLflowRun
from torchtally.monitoring.tracker import Recorder

mlflow = pytest.importorskip("mlflow")


# `mlflow server`, in this one process: another would import all of it once more.
SERVER = """
import os, sys, torch
import mlflow.server, uvicorn
from mlflow.cli import cli

def execute(command, extra_env, **how):
    os.environ.update(extra_env)
    uvicorn.main(command[command.index("uvicorn") + 1 :])

mlflow.server._exec_cmd = execute
cli(["server", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a real tracking server."""
    folder, port = tmp_path_factory.mktemp("mlflow"), ranks.free_port()
    where = ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--port", str(port), "--workers", "1"]
    places = ["--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, *where, *places],
        env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # six processes, which no run needs
        stdout=(folder / "server.log").open("w"),
        stderr=subprocess.STDOUT,
    )

    def answers() -> bool:
        assert process.poll() is None, (folder / "server.log").read_text()
        with socket.socket() as knock:
            return knock.connect_ex(("127.0.0.1", port)) == 0

    until("the tracking server answers", answers)
    yield port
    process.terminate()
    process.wait(LIMIT)


@pytest.fixture
def server(port: int) -> str:
    return f"http://127.0.0.1:{port}"


CHOSEN = tasks.OPTIONS["fashion-mnist"](hidden=4)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """What a run leaves behind."""
    torch.save(tasks.load("fashion-mnist").model(CHOSEN).state_dict(), tmp_path / "model.pt")
    (tmp_path / "proof.json").write_text(json.dumps({"predicate": {"holds": True}}))
    return tmp_path


def trained(output: Path) -> tuple[torch.nn.Module, torch.Tensor]:
    model = tasks.load("fashion-mnist").model(CHOSEN)
    model.load_state_dict(torch.load(output / "model.pt"))
    return model, torch.zeros(2, 28, 28)


def tracker(output: Path, run: str) -> Recorder:
    place = {"attempt": 0, "pod": "demo-master-0", "plan": {"train": 3}, "rank": 0, "world": 4, "seed": 0}
    of = Run(run=run, task="fashion-mnist", data="", **place)
    run_of = MLflowRun("tests", of, {"hidden": 4, "epochs": 3}, output, lambda: trained(output))
    return Recorder(run_of, output / "proof.json")


def found(uri: str, run: str) -> Any:
    """MLflow's run with this run's id."""
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("tests")
    runs = client.search_runs([experiment.experiment_id], f"tags.`torchtally.run` = '{run}'") if experiment else []
    assert len(runs) <= 1
    return runs[0] if runs else None


def test_a_run_is_recorded_with_its_model_and_its_proof(
    server: str, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.5")
    record = tracker(output, "aaa")
    record.metrics(100, train_loss=2.5)
    record.metrics(200, train_loss=1.5, test_loss=1.25)
    until("the machine is sampled", lambda: (run := found(server, "aaa")) and "system/cpu" in str(run.data.metrics))
    record.end("FINISHED")

    run = found(server, "aaa")
    assert run.info.status == "FINISHED"
    assert run.data.params == {"hidden": "4", "epochs": "3"}
    assert run.data.tags["torchtally.proof"] == "every sample as the contract says"
    assert run.data.tags["world"] == "4"
    assert run.data.metrics["test_loss"] == 1.25
    assert run.data.metrics["system/cpu_utilization_percentage"] >= 0
    client = mlflow.MlflowClient(server)
    losses = client.get_metric_history(run.info.run_id, "train_loss")
    assert [(each.step, each.value) for each in losses] == [(100, 2.5), (200, 1.5)]
    assert "proof.json" in {each.path for each in client.list_artifacts(run.info.run_id)}

    mlflow.set_tracking_uri(server)
    uri = f"runs:/{run.info.run_id}/model"
    inputs = torch.rand(3, 28, 28)
    model, _ = trained(output)
    assert torch.equal(mlflow.pytorch.load_model(uri)(inputs), model(inputs))
    signature = mlflow.models.get_model_info(uri).signature
    assert "(-1, 28, 28)" in str(signature.inputs) and "(-1, 10)" in str(signature.outputs)


def test_an_own_loop_is_recorded_with_its_numbers_and_its_proof(server: str) -> None:
    first, _ = run_ranks(2, logs_its_loss, {"TORCHTALLY_MLFLOW": "tests", "MLFLOW_TRACKING_URI": server})
    assert first["code"] == 0, first["err"]
    run = found(server, first["lines"][0]["run"])
    assert (run.info.status, run.data.tags["task"], run.data.tags["data"]) == ("FINISHED", "own", "squares")
    assert run.data.params == {"seed": "7", "plan": "{'train': 2}"}
    client = mlflow.MlflowClient(server)
    losses = client.get_metric_history(run.info.run_id, "train_loss")
    assert (losses[0].step, losses[0].value) == (1, 1.0)
    assert losses[-1].value == pytest.approx(1 / 3)
    assert losses[-1].step == 6
    assert run.data.tags["torchtally.proof"] == "every sample as the contract says"
    mlflow.set_tracking_uri(server)
    proof = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/lines.json")
    assert [line["phase"] for line in proof["lines"]] == ["train", "train", "all"]


def test_a_run_that_starts_again_goes_on_with_its_record(
    server: str, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    record = tracker(output, "bbb")
    record.metrics(100, train_loss=2.5)
    until("the first value is recorded", lambda: (run := found(server, "bbb")) and run.data.metrics)
    first = found(server, "bbb").info.run_id
    record = tracker(output, "bbb")
    record.metrics(200, train_loss=1.5)
    until("the second is, too", lambda: found(server, "bbb").data.metrics["train_loss"] == 1.5)
    monkeypatch.setitem(Recorder.patience, "FAILED", LIMIT)
    record.end("FAILED")
    run = found(server, "bbb")
    assert (run.info.run_id, run.info.status) == (first, "FAILED")
    history = mlflow.MlflowClient(server).get_metric_history(first, "train_loss")
    assert [each.step for each in history] == [100, 200]


def test_a_server_that_is_away_is_said_once_and_told_later(
    port: int, output: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody listens at its address until something passes on what comes."""
    later = ranks.free_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://name:secret@127.0.0.1:{later}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(Recorder, "pause", 1.0)
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.5")
    record = tracker(output, "ccc")
    for step in range(1, 1500):
        record.metrics(step, train_loss=1 / step)
    monkeypatch.setitem(Recorder.patience, "FAILED", LIMIT)
    said = ""

    def has_said(sentence: str) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return sentence in said

    until("it is said", lambda: has_said("MLflow does not accept the record"))
    with objectstore.proxy(port, output / "mode", later):
        until("it is all told", lambda: has_said("MLflow answers again"))
        record.end("FAILED")
        uri = f"http://127.0.0.1:{port}"
        run = found(uri, "ccc")
        assert run.info.status == "FAILED"
        history = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, "train_loss")
        assert [each.step for each in history] == list(range(1, 1500))
    assert has_said("") and (said.count("does not accept"), said.count("answers again")) == (1, 1)
    assert "secret" not in said


def ends_beside(silent: int) -> None:
    """An own loop whose server takes connections and never answers."""
    Recorder.patience["FINISHED"] = 0.5
    logs_its_loss({"TORCHTALLY_MLFLOW": "tests", "MLFLOW_TRACKING_URI": f"http://name:secret@127.0.0.1:{silent}"})


def test_a_server_that_never_answers_keeps_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (ended,) = run_ranks(1, ends_beside, silent.getsockname()[1])
    assert ended["code"] == 0, ended["err"]
    assert ended["err"].count("MLflow did not accept the complete record of the run within") == 1
    assert "secret" not in ended["err"]


def test_a_run_whose_proof_does_not_hold_is_not_recorded_as_proved(
    server: str, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    (output / "proof.json").write_text(json.dumps({"predicate": {"holds": False}}))
    tracker(output, "ggg").end("FINISHED")
    assert found(server, "ggg").data.tags["torchtally.proof"] == "does not hold"


def test_a_task_is_recorded_in_the_output_folder_without_a_server(environment: dict[str, str], tmp_path: Path) -> None:
    options = ["--epochs", "1", "--batch-size", "250", "--hidden", "8", "--mlflow", "tests", "--output", str(tmp_path)]
    environment.pop("MLFLOW_TRACKING_URI", None)
    ended = alone(environment, ["run", "fashion-mnist", *options])
    assert ended.returncode == 0, ended.stderr
    assert "MLflow" not in ended.stderr and "Traceback" not in ended.stderr
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = found(uri, json.loads((tmp_path / "proof.json").read_text())["predicate"]["run"])
    assert (run.info.status, run.data.params["hidden"]) == ("FINISHED", "8")
    assert run.data.tags["torchtally.proof"] == "every sample as the contract says"
    assert 0 < run.data.metrics["test_loss"] < 5
    assert run.info.artifact_uri.startswith(f"file://{tmp_path}")
    mlflow.set_tracking_uri(uri)
    assert mlflow.pytorch.load_model(f"runs:/{run.info.run_id}/model")(torch.zeros(3, 28, 28)).shape == (3, 10)
