"""The measurement of saves in the background."""

import pytest

from bench.measure import saves


@pytest.mark.nightly
def test_each_save_is_held_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "_EVERY", 0.1)
    found = saves.measured("--width 16 --layers 1 --length 8 --batch 2", 1)
    assert len(found) == saves._SAVES - 1
    for each in found:
        assert 0 < each["held, CPU"] <= each["held"]
        assert each["writing, CPU"] > 0
