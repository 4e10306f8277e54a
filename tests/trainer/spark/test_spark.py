"""What `torchtally spark` says before pyspark is imported. The rest is in test_spark_cluster.py."""

from pathlib import Path

import pytest

from torchtally import cli, spark


def test_a_gpu_is_asked_for_and_spark_assigns_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHTALLY_DEVICE", "cuda")
    assert cli.main(["spark", "fashion-mnist", "--output", str(tmp_path)]) == 2
    assert "TORCHTALLY_DEVICE=cuda needs --gpu" in capsys.readouterr().err


def test_pyspark_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["spark", "fashion-mnist", "--output", str(tmp_path)]) == 2
    assert "pip install pyspark, or use an image with the extra `spark`" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["spark.executor.memory", "=1g"])
def test_a_setting_that_is_none(capsys: pytest.CaptureFixture[str], setting: str) -> None:
    assert cli.main(["spark", "--conf", setting, "fashion-mnist"]) == 2
    assert f"{setting!r} must be KEY=VALUE" in capsys.readouterr().err


def test_an_executor_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    url = "http://10.0.0.1:8081/logPage/?appId=app-1-0000&executorId=3&logType=stdout"
    assert spark.executor({"SPARK_LOG_URL_STDOUT": url}) == "host-exec-3"  # standalone
    assert spark.executor({}) == "host"
    monkeypatch.setattr("socket.gethostname", lambda: "torchtally-93-exec-1")
    assert spark.executor({"SPARK_EXECUTOR_ID": "1"}) == "torchtally-93-exec-1"  # Kubernetes
