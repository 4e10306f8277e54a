from collections.abc import Iterator
from pathlib import Path

import pytest
from answering import Server, serving


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(tmp_path, monkeypatch) as answering:
        yield answering
