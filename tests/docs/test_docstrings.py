"""The examples in docstrings of what users import run as they are."""

import doctest
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import torchtally.accounting
import torchtally.streams

FINDER = doctest.DocTestFinder(exclude_empty=True)


def examples() -> list[doctest.DocTest]:
    rooms: list[ModuleType] = [torchtally.accounting, torchtally.streams]
    names = [each.name for room in rooms for each in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    tests = [test for name in names for test in FINDER.find(importlib.import_module(name))]
    return [test for test in tests if test.examples]


def test_examples_run_as_they_are(tmp_path: Path) -> None:
    found = examples()
    assert {test.name.rpartition(".")[2] for test in found} >= {
        "Mixture",
        "Packed",
        "Sampler",
        "MDS",
        "ParquetFiles",
        "TarFiles",
        "TokenFiles",
    }
    for number, test in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        test.globs["folder"] = str(folder)  # an empty one, which examples may use
        printed: list[str] = []
        failed = doctest.DocTestRunner().run(test, out=printed.append).failed
        assert not failed, "".join(printed)
