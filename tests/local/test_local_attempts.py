"""Pods that count their restarts, in the real training: it ends with the weights of an undisturbed one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fault_table import lost_and_doubled
from localjobs import RUN_LOCAL
from test_local_faults import MASTER, WORKER, Training, kill_the_trainer, undisturbed, weights  # noqa: F401

from local.controller import Outcome
from torchtally import events

pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]


def test_pods_that_count_their_restarts_start_again_in_place(tmp_path: Path, undisturbed: str) -> None:  # noqa: F811
    with Training(tmp_path, "ExitCode", {"TORCHTALLY_RETRIES": "6"}) as training:
        kill_the_trainer(WORKER, training)
        training.until_reported(MASTER, events.Resumed)
        kill_the_trainer(MASTER, training)
        ended = training.end()
    assert ended.verdict.outcome is Outcome.SUCCEEDED
    assert set(training.starts.values()) == {1}
    (log := tmp_path / "job.log").write_text("\n".join(training.lines))
    script = [sys.executable, str(RUN_LOCAL.parent / "verify_shards.py"), "--json", str(log)]
    verified = subprocess.run(script, capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout
    assert lost_and_doubled(json.loads(verified.stdout)) == (0, 0)
    assert weights(training) == undisturbed
