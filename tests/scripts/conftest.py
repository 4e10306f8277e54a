import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from answering import Server, serving

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(tmp_path, monkeypatch) as answering:
        yield answering
