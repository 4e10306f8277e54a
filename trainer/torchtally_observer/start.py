"""Starts an observation once PyTorch is imported. Until then, it is an entry in sys.meta_path.

A rank of `torchtally run` is also made ready to say where it stands, observed or not. Nothing else is imported.
"""

import os
import sys

VARIABLE = "TORCHTALLY_OBSERVE"
_STACKS = "TORCHTALLY_STACKS"
_LOADER = "torch.utils.data.dataloader"
_OPTIMIZER = "torch.optim.optimizer"


class _AfterImport:
    """A finder that calls `observe` with a module once it is imported."""

    def __init__(self):
        self._wanted = {_LOADER, _OPTIMIZER}

    def find_spec(self, name, path=None, target=None):
        if name not in self._wanted:
            return None
        self._wanted.discard(name)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec and hasattr(spec.loader, "exec_module"):
                _extend(spec.loader)
                return spec
        return None


def _extend(loader):
    run = loader.exec_module

    def exec_module(module):
        run(module)
        _observe(module)

    loader.exec_module = exec_module


def _observe(module):
    try:
        from torchtally_observer import patches

        patches.install(module)
    except Exception as error:  # whatever it is, the program continues
        _say_off(error)


def _say_off(error):
    try:
        from torchtally_observer import process

        process.current().turn_off(error)
    except Exception:
        pass


def start(default="never"):
    """Observe this process if TORCHTALLY_OBSERVE, or else the default, is `auto`. A second call does nothing."""
    if _STACKS in os.environ:
        from torchtally_observer import signs

        signs.ready()
    if (os.environ.get(VARIABLE) or default) != "auto" or any(isinstance(each, _AfterImport) for each in sys.meta_path):
        return
    sys.meta_path.insert(0, _AfterImport())
    for name in (_LOADER, _OPTIMIZER):
        if name in sys.modules:
            _observe(sys.modules[name])
