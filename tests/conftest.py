"""For all tests. Those that need a Docker engine carry `@pytest.mark.engine`, and those of a browser `browser`."""

import ast
import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fork_server
import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

for profile, examples in (("some", 30), ("many", 300)):
    hypothesis.settings.register_profile(profile, deadline=None, max_examples=examples)  # a busy machine is no bug
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads of several processes would wait for one another's cores
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would programs
fork_server.install()
sys.path += fork_server.folders


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-engine",
        action="store_true",
        default=os.environ.get("CI") == "true",
        help="a test that needs a Docker engine, an image, or a browser fails where it would be skipped (default with "
        "CI=true)",
    )
    parser.addoption(
        "--seeds",
        type=_seeds,
        metavar="N | FIRST-LAST",
        help="tests of faults that a seed draws: try so many seeds, or these",
    )


def _seeds(text: str) -> list[int]:
    first, _, last = text.rpartition("-")
    return [*range(int(first), int(last) + 1)] if first else [*range(int(last))]


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("some" if config.option.markexpr == "not nightly" else "many")


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


# Their tests take longest, and would otherwise be the last to end.
LONGEST = ("test_local_faults", "test_keras_mnist", "test_mlflow", "test_events", "test_retries", "test_script")
LONGEST += ("test_spark_cluster", "test_stranger", "test_streams_s3")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # On a cluster, tests have an order of their own.
    items.sort(key=lambda item: item.path.parent.name == "e2e" or item.path.stem not in LONGEST)


# What starts once for each process that has one of these tests: an object store, and a browser.
TOGETHER = {"store": re.compile("(?<![a-z])s3|object_store"), "browser": re.compile("^tests/page/")}


class _SharedFixtures(LoadScopeScheduling):
    """Tests that share a fixture of their file run in one process, the others wherever there is room.

    That is what pytest-xdist's loadgroup is for, whose version 3.8 groups nothing with pytest 9.
    """

    def _split_scope(self, nodeid: str) -> str:
        for group, names in TOGETHER.items():
            if names.search(nodeid):
                return group
        file, _, name = nodeid.partition("::")
        group = _shared_fixtures(self.config.rootpath / file).get(name.partition("[")[0])
        return f"{file}::{group}" if group else nodeid


@functools.cache
def _shared_fixtures(file: Path) -> dict[str, str]:
    """By test, the shared fixture of this file that it, or a fixture of its, needs."""
    functions = {each.name: each for each in ast.parse(file.read_text()).body if isinstance(each, ast.FunctionDef)}

    def needed(name: str) -> set[str]:
        found = {
            each for argument in functions[name].args.args if argument.arg in functions for each in needed(argument.arg)
        }
        shared = any("scope=" in ast.unparse(decorator) for decorator in functions[name].decorator_list)
        return found or ({name} if shared else set())

    return {name: min(found) for name in functions if (found := needed(name))}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # it would put the largest groups first, which are not the longest
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
    needs = item.get_closest_marker("engine") or item.get_closest_marker("browser")
    if skipped and needs and item.config.getoption("require_engine"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"--require-engine (or CI=true) forbids this skip: {reason}"
    return report
