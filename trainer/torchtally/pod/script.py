"""A user's script or module in a forked rank: it finds Python as if Python had been started with it.

What a fork of a process that has imported torch cannot give is started from nothing, in the same process.
"""

import io
import os
import re
import runpy
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import torch

from torchtally_observer import start

# Read when torch, numpy, and what they link against are loaded. A program that sets one of them does so before that.
_READ_BY_IMPORTS = re.compile(
    rb"\b(ATEN|GOMP|GOTO|KMP|MKL|MPMATH|NPY|NUMPY|OMP|OPENBLAS|PYTORCH|SYMPY|TORCH|TORCHDYNAMO|TORCHINDUCTOR|TQDM|"
    rb"TRITON)_[A-Z]"
)
# Each has a number of threads of its own, which the pod's OMP_NUM_THREADS must not replace.
_THREADS = ("GOTO_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# They make Python report what it does at its start, or go on after the program's end.
_OF_A_START = ("PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE")


@dataclass(frozen=True)
class Script:
    """What `python [-u] PATH.py [arguments]` or `python [-u] -m MODULE [arguments]` runs."""

    command: Sequence[str]
    python: str
    unbuffered: bool
    module: str | None
    arguments: Sequence[str]  # with the path of a script in front

    @classmethod
    def of(cls, command: Sequence[str], env: Mapping[str, str]) -> "Script | None":
        """Return the program of a command, or None for one that a fork of this process cannot be."""
        found = shutil.which(command[0])
        if not (found and _is_this_python(found)) or _is_unlike_a_start(env):
            return None
        rest = list(command[1:])
        unbuffered = bool(env.get("PYTHONUNBUFFERED"))
        while rest[:1] == ["-u"]:
            unbuffered = bool(rest.pop(0))
        match rest:
            case ["-m", module, *arguments]:
                return cls(command, os.path.abspath(found), unbuffered, module, arguments)  # noqa: PTH100
            case [path, *_] if path.endswith(".py") and not path.startswith("-"):
                return cls(command, os.path.abspath(found), unbuffered, None, rest)  # noqa: PTH100
        return None

    def run(self) -> int:
        """Run it, as `__main__`. What it raises is the caller's to raise. Returns 0."""
        if self._is_unlike_a_fork():
            os.execve(self.python, list(self.command), os.environ)
        self._set_up_python()
        start.start()  # as the .pth file does at a start from nothing
        try:
            if self.module:
                runpy._run_module_as_main(self.module)  # type: ignore[attr-defined]  # as Python does
            else:
                _run_file(self.arguments[0])
        except SystemExit as end:
            sys.exit(end.code)  # which a watch notes, whatever has raised it
        except BaseException as error:
            _hide_callers(error)
            raise
        return 0

    def _folder(self) -> str:
        if self.module:
            return str(Path.cwd())
        return os.path.dirname(os.path.realpath(self.arguments[0]))  # noqa: PTH120

    def _is_unlike_a_fork(self) -> bool:
        """Whether the program has modules in place of those imported, or sets variables before it imports any."""
        imported = {name.partition(".")[0] for name in sys.modules} - {"__main__", "__mp_main__"}
        try:
            folder = self._folder()
            if not os.environ.get("PYTHONSAFEPATH"):
                sys.path[0] = folder
            own = {name.partition(".")[0] for name in os.listdir(folder)}  # noqa: PTH208
            sources = [path.read_bytes() for path in self._sources()]
        except OSError:
            return True  # Python says why
        replaced = (PathFinder.find_spec(name, [folder]) for name in own & imported)
        return any(spec and spec.loader for spec in replaced) or any(map(_READ_BY_IMPORTS.search, sources))

    def _sources(self) -> Iterator[Path]:
        """Yield the files that Python runs first: the script, or the module and the packages around it."""
        if not self.module:
            yield Path(self.arguments[0])
            return
        places: Sequence[str] | None = None
        parts = self.module.split(".")
        for number in range(1, len(parts) + 2):
            name = ".".join([*parts, "__main__"][:number])
            spec = PathFinder.find_spec(name, places)  # imports nothing
            if spec is None or (spec.origin and not spec.origin.endswith(".py")):
                raise FileNotFoundError(name)
            if spec.origin:
                yield Path(spec.origin)
            if spec.submodule_search_locations is None:
                return
            places = list(spec.submodule_search_locations)

    def _set_up_python(self) -> None:
        sys.executable, sys.orig_argv = self.python, list(self.command)
        sys.argv = ["-m", *self.arguments] if self.module else list(self.arguments)
        for name in ("stdout", "stderr"):
            if stream := getattr(sys, name):
                stream = _reopened(stream, self.unbuffered, by_line=name == "stderr" or stream.isatty())
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)
        np.random.seed()  # Python does so for its own generator in each fork
        torch.default_generator.seed()
        main = sys.modules["__main__"] = sys.modules["__mp_main__"] = ModuleType("__main__")
        main.__dict__["__builtins__"] = sys.modules["builtins"]
        if sys.version_info < (3, 14):
            main.__annotations__ = {}


def _is_this_python(found: str) -> bool:
    """Whether a program is the Python that runs, in the same environment, without options that change Python."""
    own = sys.orig_argv[1:]
    while own[:1] == ["-u"]:
        own.pop(0)
    if own and own[0].startswith("-") and own[0] not in ("-c", "-m"):
        return False
    same_folder = os.path.realpath(os.path.dirname(found)) == os.path.realpath(os.path.dirname(sys.executable))  # noqa: PTH120
    return same_folder and os.path.realpath(found) == os.path.realpath(sys.executable)


def _is_unlike_a_start(env: Mapping[str, str]) -> bool:
    return (
        any(env.get(name) for name in _OF_A_START)
        or ("OMP_NUM_THREADS" not in env and any(env.get(name) for name in _THREADS))
        or sys.gettrace() is not None
        or sys.getprofile() is not None
    )


def _run_file(path: str) -> None:
    main = sys.modules["__main__"]
    file = os.path.join(os.getcwd(), path.removeprefix("./"))  # noqa: PTH109, PTH118
    main.__loader__, main.__file__ = SourceFileLoader("__main__", file), file
    main.__cached__ = None  # type: ignore[attr-defined]
    exec(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True), main.__dict__)


def _hide_callers(error: BaseException) -> None:
    """Let the traceback, if Python prints it at its end, begin with the program."""
    shown = sys.excepthook
    own = error.__traceback__
    while own and own.tb_frame.f_globals is globals():
        own = own.tb_next

    def show(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> Any:
        sys.excepthook = shown  # and nothing keeps the error's frames for longer than Python does
        return shown(kind, value.with_traceback(own), own) if value is error else shown(kind, value, traceback)

    sys.excepthook = show


def _reopened(stream: Any, unbuffered: bool, by_line: bool) -> "io.TextIOWrapper[Any]":
    """Return standard output or error as Python opens it at its start."""
    binary: Any = open(stream.fileno(), "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    (binary if unbuffered else binary.raw).name = stream.name
    text = io.TextIOWrapper(
        binary,
        stream.encoding,
        stream.errors,
        newline="\n",
        line_buffering=by_line and not unbuffered,
        write_through=unbuffered,
    )
    text.mode = "w"  # type: ignore[misc]
    return text
