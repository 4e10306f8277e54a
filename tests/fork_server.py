"""Starts `python …` by a fork of a process that has imported torch, in 0.1 s instead of 3.

`install` makes subprocess.Popen ask such a server for every program that imports torch, and for the workers of
pytest-xdist. The new process is as if it had been started from nothing: a child of the caller, with its environment,
folder and files, in a session of its own if asked, and with the same exit codes. A test marked `cold` starts its
programs from nothing.
"""

import atexit
import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import copy_on_write
from execnet.gateway_io import popen_bootstrapline as WORKER  # the code of a worker of pytest-xdist

IMPORTED = ["torch", "torchtally.pod.launch", "torchtally.commands.train", "torchtally.commands.evaluate"]
# What ranks need (tests/helpers/ranks.py).
IMPORTED += ["torch._dynamo", "torchtally.training.loop", "torchtally.accounting.account"]
# What test files and their programs need as well: with several workers, which collect all files, it is worth its time.
ALL = ["hypothesis", "keras", "kubernetes.client.api.core_v1_api", "kubernetes.utils", "lightning.pytorch"]
ALL += ["mlflow", "pooch", "pytest", "scipy.stats", "testcontainers.core.container"]
ALL += ["torchmetrics", "transformers.trainer"]
ALL += [f"torchtally.integrations.{each}" for each in ("accelerate", "keras", "lightning", "transformers")]
ALL += ["s3fs", "torchdata.stateful_dataloader"]  # which Lightning and the Trainer import in a training
PYTEST = "import torch, sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"  # `python -c` of it starts as a fork
ROOT = Path(__file__).parents[1]
SHIM = ROOT / "trainer/torchtally/local/shim.py"  # starts pods, and so needs a server of its own
RANKS = str(ROOT / "tests/helpers/ranks.py")  # its program needs the tests' modules
TORCHRUN = "torch.distributed.run"  # likewise: it starts ranks
# As an agent starts a rank. What follows is the agent's process id, and the program.
TIED = [sys.executable, "-I", "-S", str(ROOT / "trainer/torchtally/pod/parent_death.py")]
folders: list[str] = []  # which the tests' files have added to sys.path
_of_tests: dict[str, ModuleType] = {}  # what only test files import
_enabled = True
_installed = False
_TORCH = re.compile(r"^\s*(import|from) torch|; *(import|from) torch", re.MULTILINE)
_from_nothing = subprocess.Popen._execute_child  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Program:
    """What `python [options] -c code | -m module | path [arguments]` runs."""

    command: list[str]
    options: list[str]
    kind: str  # "-c", "-m" or "path"
    name: str
    arguments: list[str]
    ends_with: int | None = None  # the process id of its parent

    @property
    def starts_programs(self) -> bool:
        """Whether it starts further ones that import torch."""
        runs_script = self.arguments[:1] == ["run"] and self.arguments[1:2] and self.arguments[1].endswith(".py")
        return self.name in (WORKER, str(SHIM), TORCHRUN) or sys.executable in self.arguments or bool(runs_script)

    @classmethod
    def of(cls, command: Any, folder: str) -> "Program | None":
        """None for a program that does not import torch, or that asks for more than a fork can give."""
        if isinstance(command, (str, bytes, os.PathLike)):
            return None
        words = [os.fspath(word) for word in command]
        parent = int(words[len(TIED)]) if words[: len(TIED)] == TIED else None
        first, *rest = words if parent is None else words[len(TIED) + 1 :]
        options = []
        while rest and rest[0] in ("-u", "-P"):
            options.append(rest.pop(0))
        match rest:
            case ["-c", str(code), *arguments] if code == WORKER or _TORCH.search(code):
                kind, name = "-c", code
            case ["-m", str(module), *arguments] if module.startswith("torchtally.") or module == TORCHRUN:
                kind, name = "-m", module
            case [str(path), *arguments] if _imports_torch(Path(folder, path)):
                kind, name = "path", path
            case _:
                return None
        return cls([first, *rest], options, kind, name, arguments, parent) if first == sys.executable else None


def _imports_torch(path: Path) -> bool:
    if path == SHIM:
        return True
    own = path.suffix == ".py" and ROOT / "scripts" not in path.parents
    return own and path.exists() and bool(_TORCH.search(path.read_text()))


def install(channel: socket.socket | None = None) -> None:
    """Let this process start its programs by a server: by the one behind `channel`, or one that it starts itself."""
    global _installed
    if sys.platform != "linux" or copy_on_write.CLONE is None or _installed:
        return
    _installed = True
    client = _Client(channel)
    parameters = inspect.signature(_from_nothing)

    def execute(self: subprocess.Popen[Any], *given: Any, **named: Any) -> None:
        how = parameters.bind(self, *given, **named).arguments
        folder = os.fspath(how["cwd"] or Path.cwd())
        simple = not any(how[name] for name in ("executable", "preexec_fn", "shell", "pass_fds"))
        program = Program.of(how["args"], folder) if simple and _enabled and os.getpid() == client.owner else None
        if program is None:
            _from_nothing(self, *given, **named)
            return
        files = [how["p2cread"], how["c2pwrite"], how["errwrite"]]
        self.pid = client.start(
            program,
            environment={**(os.environ if how["env"] is None else how["env"])},
            folder=folder,
            new_session=how["start_new_session"],
            files=[number if own == -1 else own for number, own in enumerate(files)],
        )
        self._child_created = True  # type: ignore[attr-defined]
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(how[end] for end in ends))  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """All programs start from nothing."""
    global _enabled
    _enabled = False
    try:
        yield
    finally:
        _enabled = True


class _Client:
    def __init__(self, channel: socket.socket | None) -> None:
        self.owner = os.getpid()  # what is forked from it is no ancestor of the server
        self._channel = channel
        self._server: subprocess.Popen[bytes] | None = None
        self._one_at_a_time = threading.Lock()

    def start(
        self, program: Program, *, environment: Mapping[str, str], folder: str, new_session: bool, files: list[int]
    ) -> int:
        """The process id of what runs the program, a child of this process."""
        asked = {"program": asdict(program), "environment": environment, "folder": folder, "session": new_session}
        text = json.dumps(asked).encode()
        with self._one_at_a_time:
            channel = self._channel = self._channel or self._start(program.name == WORKER)
            socket.send_fds(channel, [struct.pack("I", len(text))], files)
            channel.sendall(text)
            (pid,) = struct.unpack("I", _received(channel, 4))
        return int(pid)

    def _start(self, everything: bool) -> socket.socket:
        here, there = socket.socketpair()
        folder = str(Path(__file__).parent)
        code = f"import sys; sys.path.append({folder!r}); import fork_server; "
        code += f"fork_server.main({there.fileno()}, {sys.argv[1:] if everything else None})"
        command = [sys.executable, "-P", "-c", code]
        # In huge pages, of which a fork copies the entries in half the time.
        pages = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        # It ends when this process does, which closes the channel: nobody waits for it.
        self._server = subprocess.Popen(
            command, env={**os.environ, **pages}, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL
        )
        there.close()
        return here


def _received(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = channel.recv(size - len(data))
        if not more:
            raise EOFError("the fork server is gone")
        data += more
    return data


# The server.


def serve(channel: socket.socket) -> Program:
    """Fork a process for each request, for as long as there is somebody to ask; returns in those processes alone."""
    while True:
        first, files, _, _ = socket.recv_fds(channel, 4, 3)
        if not first:
            os._exit(0)
        request = json.loads(_received(channel, *struct.unpack("I", first)))
        ready, own = os.pipe()
        pid = copy_on_write.fork_sibling()
        if pid == 0:
            program = Program(**request.pop("program"))
            channel.close()
            _become(request, files)
            os.close(ready)
            os.close(own)
            return program
        for each in (own, *files):
            os.close(each)
        with os.fdopen(ready, "rb") as told:
            told.read()  # to its end: the process is ready, or has been killed
        channel.sendall(struct.pack("I", pid))


def _become(request: dict[str, Any], files: list[int]) -> None:
    if request["session"]:
        os.setsid()
    for number, each in enumerate(files):
        os.dup2(each, number)
    for each in files:
        os.close(each)
    for name, mode, buffering, number in (("stdin", "r", -1, 0), ("stdout", "w", -1, 1), ("stderr", "w", 1, 2)):
        old = getattr(sys, name)  # which remembers whether the server's was a terminal, or could seek
        newline = None if mode == "r" else "\n"
        new = open(number, mode, buffering, old.encoding, old.errors, newline, closefd=False)  # noqa: SIM115
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])


def _collect(tests: list[str]) -> None:
    """Import the tests' files, as the workers of pytest-xdist will do and the ranks."""
    global _installed
    import pytest

    own, _installed = list(sys.path), True  # not in this process
    sys.path.insert(0, str(Path.cwd()))
    with Path(os.devnull).open("w") as none, contextlib.redirect_stdout(none), contextlib.redirect_stderr(none):
        pytest.main([*tests, "--collect-only", "--numprocesses=0"])
    _installed, folders[:], sys.path[:] = False, [each for each in sys.path if each not in own], own
    for name, module in sys.modules.items():
        file = vars(module).get("__file__") or ""
        if file.startswith(f"{ROOT}/") and not file.startswith((f"{ROOT}/trainer/", f"{sys.prefix}/")):
            _of_tests[name] = module


def run(program: Program) -> None:
    """Run it as Python would, in a new __main__."""
    import numpy
    import torch

    from torchtally.pod import parent_death
    from torchtally_observer import start

    if program.ends_with:
        parent_death.end_with(program.ends_with)
    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdigit():  # OpenMP has read the server's
        torch.set_num_threads(int(threads))
    numpy.random.seed()  # each process has its own
    random.seed()
    if "-u" in program.options or os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.orig_argv = program.command
    start.start()  # as the .pth file does
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    match program.kind:
        case "-c":
            place, file, code = "", "-c", compile(program.name, "<string>", "exec")
        case "-m":
            spec = importlib.util.find_spec(program.name)
            assert spec is not None and spec.origin is not None and spec.loader is not None
            main.__spec__, main.__package__, main.__file__ = spec, spec.parent, spec.origin
            place, file, code = str(Path.cwd()), spec.origin, spec.loader.get_code(program.name)  # type: ignore[attr-defined]
        case _:
            place, file = str(Path(program.name).parent.absolute()), program.name
            main.__file__ = file
            code = compile(Path(file).read_text(), file, "exec")
    sys.argv = [file, *program.arguments]
    if program.name not in (WORKER, RANKS, PYTEST):
        for name in _of_tests:
            sys.modules.pop(name)  # a program's own module can have the same name
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [*([] if "-P" in program.options else [place]), *filter(None, own)]
    exec(code, main.__dict__)


def leave(run: Callable[[], None]) -> NoReturn:
    """Run it, and end as Python does, but for giving all memory back: that would copy what the server shares."""
    code: Any = None
    try:
        run()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        sys.last_value, code = error, 1
        try:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        except SystemExit as end:
            code = end.code
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def main(channel: int, tests: list[str] | None) -> None:
    """Serve; with pytest's arguments for `tests`, import these as well."""
    os.environ["KERAS_BACKEND"] = "torch"  # read where it is imported
    gc.disable()  # until all is imported: there is next to nothing to collect
    for name in [*IMPORTED, *(ALL if tests is not None else [])]:
        importlib.import_module(name)
    if tests is not None:
        gc.freeze()
        _collect(tests)
    copy_on_write.prepare()
    program = serve(socket.socket(fileno=channel))
    # A pod that is to start in place must have no other child: its ranks start from nothing.
    while program.starts_programs and "TORCHTALLY_RETRIES" not in os.environ:
        here, there = socket.socketpair()
        if os.fork():
            there.close()
            install(here)
            break
        here.close()
        Path("/proc/self/comm").write_text("fork server")
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        program = serve(there)
    leave(lambda: run(program))
