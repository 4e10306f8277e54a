"""The example of a GPT: killed with signal 9 while it trains, it goes on, also with another number of ranks."""

import re
import sys
from pathlib import Path

import pytest
from accounts import tallied
from own_scripts import ROOT
from task_runs import killed_and_resumed, whole

OPTIONS = ("--steps", "40", "--batch", "4", "--length", "16", "--width", "16", "--save-every", "0.1")


def command(folder: Path) -> list[str]:
    (text := folder / "text.txt").write_text("".join(chr(97 + number * number % 23) for number in range(3000)))
    script = [sys.executable, str(ROOT / "examples/gpt.py"), *OPTIONS]
    return ["run", "--", *script, "--text", str(text), "--output", str(folder / "gpt")]


def sample(output: str) -> str:
    [found] = re.findall("^sample: (.*)$", output, re.MULTILINE)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    return whole(folder, folder / "output", 2, *command(folder))


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_a_killed_gpt_goes_on_where_its_weights_stand(world: int, tmp_path: Path, undisturbed: str) -> None:
    second = killed_and_resumed(tmp_path, tmp_path / "output", (2, world), *command(tmp_path))
    last = tallied(second)[-1]
    assert last["attempt"] == 1
    if world == 2:  # others leave out other samples at the end of an epoch, and add up in another order
        assert last["phases"]["train"]["consumed"] == tallied(undisturbed)[-1]["phases"]["train"]["consumed"]
        assert sample(second) == sample(undisturbed)
