from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from answering import Server, serving

from torchtally.commands import jobs

Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(tmp_path, monkeypatch) as answering:
        yield answering


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """The exit status of torchtally_jobs with these arguments, and its words, each after one space."""

    def asked(*arguments: object) -> tuple[int, str]:
        status = jobs.main([*map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return status, " ".join((out + err).split())

    return asked
