"""For all tests. Those that need a Docker engine carry `@pytest.mark.engine`: whether one answers is asked once."""

import contextlib
import functools
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import fork_server
import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

hypothesis.settings.register_profile("shared", deadline=None)  # a busy machine is no bug
hypothesis.settings.load_profile("shared")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of several processes would wait for one another's cores
fork_server.install()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-engine",
        action="store_true",
        default=os.environ.get("CI") == "true",
        help="a test that needs a Docker engine or an image fails where it would be skipped (default with CI=true)",
    )


@functools.cache
def no_engine() -> str:
    """Why no engine can be used; empty if one answers."""
    try:
        result = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True, timeout=300
        )
    except FileNotFoundError:
        return "no docker on PATH"
    except subprocess.TimeoutExpired:
        return "the Docker engine does not answer within 300 s"
    return "" if result.returncode == 0 else "no Docker engine answers"


class _SharedFixtures(LoadScopeScheduling):
    """Tests whose file has a fixture for all of them run in one process, the others wherever there is room."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        return file if _has_shared_fixtures(self.config.rootpath / file) else nodeid


@functools.cache
def _has_shared_fixtures(file: Path) -> bool:
    return re.search(r'scope="(module|session)"', file.read_text()) is not None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _SharedFixtures(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    with fork_server.cold() if item.get_closest_marker("cold") else contextlib.nullcontext():
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("engine") and (reason := no_engine()):
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if skipped and item.config.getoption("require_engine") and item.get_closest_marker("engine"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"--require-engine (or CI=true) forbids this skip: {reason}"
    return report
