"""A record that is requested needs its package."""

import pytest

from torchtally.errors import Refused
from torchtally.monitoring.requested import Requested


@pytest.mark.parametrize("package", ["mlflow", "wandb", "tensorboard"])
def test_without_the_package_it_is_refused(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"TORCHTALLY_{package.upper()}", "a place")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Refused, match=rf"'a place' .*needs .*the extra `{package}`"):
        Requested.of()
