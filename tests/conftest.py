"""For all tests. Those that need a Docker engine carry `@pytest.mark.engine`: whether one answers is asked once."""

import contextlib
import functools
import os
import subprocess

import fork_server
import hypothesis
import pytest

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


# Their tests take longest, and would otherwise be the last to end.
LONGEST = ("test_spark", "test_local_faults", "test_keras_mnist", "test_mlflow", "test_events", "test_trainjob_status")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a fixture of their file run in one process, the others wherever there is room."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    for item in items:
        if shared := _shared_fixtures(item):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}.{min(shared)}"))


def _shared_fixtures(item: pytest.Item) -> set[str]:
    """Those of the test's file that need no other one of it."""
    found = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
    own = {
        name: definitions[-1]
        for name, definitions in found.items()
        if definitions[-1].scope in ("module", "session") and definitions[-1].baseid == item.nodeid.partition("::")[0]
    }
    return {name for name, definition in own.items() if not own.keys() & set(definition.argnames)}


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
