"""Jobs that no restart helps: the default policy ends them at once, or after a number of restarts."""

import pytest
from cluster import KIND_VALUES, Namespace, args, data_values, own_program

OPTIONS = [*KIND_VALUES, *data_values()]
WORKER_OF_TWO = "import os; os.environ['RANK'] == '1' and "


def program(code: str) -> list[str]:
    """Values for a program of one's own, which the entry point starts in two pods."""
    return [*own_program("python", "-c", code), "--set=workers=1"]


def test_wrong_input_ends_the_job_at_once(operator: None, namespace: Namespace) -> None:
    namespace.install(*OPTIONS, "--set=workers=1", *args("--epochs", "none"))
    namespace.wait_for_job("demo", "Failed")
    assert namespace.starts() <= 2  # the worker waits for the master, which ends at once
    assert "--epochs" in namespace.log("demo-master-0")


@pytest.mark.nightly
def test_what_one_pod_refuses_ends_all_pods_at_once(operator: None, namespace: Namespace) -> None:
    namespace.install(*OPTIONS, *program(WORKER_OF_TWO + "os._exit(2)\nimport time; time.sleep(3600)"))
    namespace.wait_for_job("demo", "Failed")
    assert namespace.starts() == 2


def test_a_job_that_always_runs_out_of_memory_ends(operator: None, namespace: Namespace) -> None:
    """In the worker alone, which has no volume: the master counts."""
    exceed = WORKER_OF_TWO + "bytearray(1 << 34)\nimport time; time.sleep(3600)"
    namespace.install(*OPTIONS, *program(exceed), "--set=backoffLimit=1")
    namespace.wait_for_job("demo", "Failed")
    said = namespace.log("demo-master-0")
    assert "demo-master-0 has started 2 times without progress, and TORCHTALLY_RETRIES is 1" in said
    assert namespace.starts() <= 6
