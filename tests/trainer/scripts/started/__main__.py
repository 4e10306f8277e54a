"""Tells what it finds in Python at its start, and ends as its argument says. Its file is a script, too."""

import sys

names = sorted(globals())

import atexit  # noqa: E402
import multiprocessing  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
from typing import Any  # noqa: E402


class Passed:
    pass


class Kept:
    def __init__(self, file: Any):
        self.file = file

    def __del__(self, write: Any = os.write) -> None:
        write(1, b"deleted\n")


def told() -> dict[str, Any]:
    found = {name: globals()[name] for name in ("names", "__name__", "__doc__", "__package__")}
    found["__file__"] = __file__
    found |= {"spec": __spec__ and __spec__.name, "loader": type(__loader__).__name__}
    found |= {"argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "executable": sys.executable}
    found |= {"main": sys.modules["__main__"].__dict__ is globals(), "pickled": pickle.dumps(told)}
    found |= {"process": multiprocessing.current_process().name, "parent": multiprocessing.parent_process()}
    found |= {"method": multiprocessing.get_start_method(allow_none=True), "thread": threading.current_thread().name}
    found["signals"] = [str(signal.getsignal(each)) for each in signal.valid_signals()]
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        how = [stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.write_through]  # type: ignore[attr-defined]
        found[stream.name] = [*how, type(stream.buffer), stream.buffer.name]
    return found


def fail() -> None:
    try:
        raise KeyError("first")
    except KeyError:
        raise ValueError("then") from None


def end(how: str) -> None:
    match how:
        case "raise":
            fail()
        case "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait()
        case "hook":
            sys.excepthook = lambda kind, value, traceback: print("hook", kind, value, traceback.tb_lineno)
            fail()
        case "spawn":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.apply(same, (Passed(),)))
        case "thread":
            threading.Timer(0.1, lambda: print("thread")).start()
        case _:
            sys.exit(eval(how))


def same(passed: Passed) -> str:
    return type(passed).__module__


if __name__ == "__main__":
    kept = Kept(open("unflushed", "w"))  # noqa: PTH123, SIM115
    kept.file.write("flushed")
    atexit.register(print, "atexit")
    for name, value in told().items():
        print(name, value)
    end(sys.argv[1])
