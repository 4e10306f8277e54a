"""The process that holds a local pod together, as a container would.

It starts the pod's command, passes SIGTERM on to it, and when the command ends, or the runner is gone, nothing of
what the command started is left. Its orders come as one line of JSON on stdin, which the runner keeps open while
it lives.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading

import psutil

_START_ERROR = 128  # Kubernetes' exit code for a container that could not be started
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    orders = json.loads(sys.stdin.readline())
    if sys.platform == "linux":  # orphans of the pod become this process's children, where they can be found
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if orders["cores"]:
        os.sched_setaffinity(0, orders["cores"])
    pod = Pod(orders["grace"])
    signal.signal(signal.SIGTERM, pod.stop)
    try:
        pod.start(orders["command"], orders["environment"], orders["directory"])
    except OSError as error:
        print(f"exec: {orders['command'][0]!r}: {error.strerror}", flush=True)
        return _START_ERROR
    threading.Thread(target=pod.kill_when_alone, daemon=True).start()
    status = pod.wait()
    pod.sweep()
    return status if status >= 0 else 128 - status


class Pod:
    """A command and all that comes of it."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._child: subprocess.Popen[bytes] | None = None  # never polled, nor let go of: `wait` alone reaps
        self._stopping = False

    def start(self, command: list[str], environment: dict[str, str], directory: str | None) -> None:
        # A session of its own, so that what the command does to its process group does not reach this process.
        self._child = subprocess.Popen(
            command, env=environment, cwd=directory, stdin=subprocess.DEVNULL, start_new_session=True
        )
        if self._stopping:
            self.stop()

    def stop(self, *_: object) -> None:
        """Ask the command to end, and end it when its time is up."""
        self._stopping = True
        if self._child is not None:
            self._signal(signal.SIGTERM)
            timer = threading.Timer(self._grace, self._signal, [signal.SIGKILL])
            timer.daemon = True
            timer.start()

    def kill_when_alone(self) -> None:
        sys.stdin.read()
        self._signal(signal.SIGKILL)

    def wait(self) -> int:
        """Reap what ends until the command itself does; its exit code, or -n for signal n."""
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self._pid:
                return os.waitstatus_to_exitcode(status)

    def sweep(self) -> None:
        """End what the command left behind."""
        while left := self._left():
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=1)

    def _left(self) -> list[psutil.Process]:
        found = psutil.Process().children(recursive=True)
        if sys.platform != "linux":  # orphans went elsewhere; they still carry the command's session
            for process in psutil.process_iter():
                with contextlib.suppress(OSError):
                    if os.getsid(process.pid) == self._pid:
                        found.append(process)
        return found

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    @property
    def _pid(self) -> int:
        assert self._child is not None
        return self._child.pid


if __name__ == "__main__":
    sys.exit(main())
