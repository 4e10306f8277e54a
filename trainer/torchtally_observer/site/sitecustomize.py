"""Reached by PYTHONPATH: starts the observer, then runs the sitecustomize that this one hides, if there is one."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _start():
    parent = os.path.dirname(os.path.dirname(_here))
    sys.path.insert(0, parent)
    try:
        from torchtally_observer import start

        start.start()
    except Exception as error:
        sys.stderr.write(f"torchtally: nothing is observed: {type(error).__name__}\n")
    finally:
        sys.path.remove(parent)


def _run_hidden():
    for folder in sys.path:
        path = os.path.join(folder or ".", "sitecustomize.py")
        if os.path.abspath(folder or ".") != _here and os.path.isfile(path):
            with open(path, "rb") as file:
                code = compile(file.read(), path, "exec")
            exec(code, {"__name__": "sitecustomize", "__file__": path})
            return


_start()
_run_hidden()
