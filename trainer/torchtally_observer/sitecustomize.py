"""Starts the observer where PYTHONPATH names this folder, then runs the sitecustomize that this one hides.

The folder leaves sys.path at once: its files hide no module of the program.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "torchtally_observer"


def _start():
    if _PACKAGE not in sys.modules:  # which a .pth file has imported already
        package = sys.modules[_PACKAGE] = type(sys)(_PACKAGE)
        package.__path__ = [_HERE]
    from torchtally_observer import start

    start.start("auto")


def _run_hidden():
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":  # Python 2 tells no name
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


if __name__ == "sitecustomize":
    sys.path[:] = [folder for folder in sys.path if folder != _HERE]  # absolute, as `site` has made them
    try:
        if sys.version_info >= (3, 8):  # noqa: UP036  # other programs of an image may be older
            _start()
    except Exception as error:  # the program continues, whatever it is
        sys.stderr.write("torchtally: nothing is observed: " + type(error).__name__ + "\n")
    _run_hidden()
