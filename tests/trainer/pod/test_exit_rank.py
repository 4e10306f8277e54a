"""The end of a rank's program."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time, torch
from torchtally.pod import failure

class Object:
    def __del__(self):
        print("the object is taken apart")

def work():
    time.sleep(0.2)  # the program is at its end by then
    print("the thread has ended")

kept = Object()
atexit.register(print, "the handler has run")
threading.Thread(target=work).start()
sys.stdout.write("buffered\\n")
failure.exit_rank(int(sys.argv[1]))
"""


@pytest.mark.cold
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, ["buffered", "the thread has ended", "the handler has run"]),
        pytest.param(3, ["buffered"], marks=pytest.mark.nightly),
    ],
)
def test_a_success_waits_for_threads_and_handlers_and_no_end_takes_objects_apart(code: int, said: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(code)], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout.splitlines(), ended.stderr) == (code, said, "")
