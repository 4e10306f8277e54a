"""What would end the ranks without a sentence: it is refused, or warned of, before they start."""

import importlib.metadata
import importlib.util
import os
import shlex
import socket
from collections.abc import Iterator, Sequence
from pathlib import PurePath

import torch.distributed as dist

from torchtally.errors import Refused
from torchtally.log import log

_LAUNCHERS = {"torchrun": [], "deepspeed": [], "accelerate-launch": [], "accelerate": ["launch"]}  # their subcommands
_MODULES = {
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
}
_WRAPPERS = {"conda", "env", "exec", "nice", "nohup", "numactl", "pipenv", "poetry", "taskset", "time", "timeout", "uv"}
_SHELLS = {"ash", "bash", "dash", "sh", "zsh"}
_INTERFACES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that starts processes itself: each rank would start those of a whole pod."""
    for words in _commands(command):
        for at, name in _programs(words):
            if _is_launcher(name, words[at + 1 :]):
                raise Refused(
                    f"{name} starts processes itself, and so does torchtally: leave it out, "
                    f"torchtally run -- {_program(words[at + 1 :])}"
                )


def check_environment(backend: str | None, *, own: bool, gpus: bool) -> None:
    """Refuse, or warn of, variables of PyTorch that end ranks.

    Args:
        backend: That of an elastic job's rendezvous.
        own: Whether the ranks run a task of this package.
        gpus: Whether the ranks use GPUs.
    """
    if backend and backend not in (known := _backends()):
        raise Refused(
            f"PET_RDZV_BACKEND={backend!r} must be one of {', '.join(known)}: in a PyTorchJob, set rdzvBackend to "
            "c10d, and leave rdzvHost and rdzvPort out of elasticPolicy"
        )
    here = [name for _, name in socket.if_nameindex()]
    for variable in _INTERFACES:
        if any(name not in here for name in filter(None, os.environ.get(variable, "").split(","))):
            raise Refused(
                f"{variable}={os.environ[variable]!r} must name interfaces that this pod has: {', '.join(here)}"
            )
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL" and not gpus:
        ends = "TORCH_DISTRIBUTED_DEBUG=DETAIL ends DistributedDataParallel on CPUs with SIGSEGV"
        if own:
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
            dist.set_debug_level_from_env()  # type: ignore[attr-defined]  # it is there, unannounced
            log.warning(f"{ends}: INFO is used in its place")
        else:
            log.warning(f"{ends}, a fault of PyTorch: INFO works")


def _commands(command: Sequence[str]) -> Iterator[list[str]]:
    """The command, or those in the text that it gives to a shell."""
    yield [*command]
    if PurePath(command[0]).name in _SHELLS:
        options = [at for at, word in enumerate(command) if word.startswith("-") and word.endswith("c")]
        text = command[options[0] + 1] if options and options[0] + 1 < len(command) else ""
        lexer = shlex.shlex(text.replace("\\\n", " ").replace("\n", ";"), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        try:
            for word in lexer:
                if set(word) <= set(";&|()"):
                    yield words
                    words = []
                else:
                    words.append(word)
        except ValueError:  # of a quotation that has no end: the shell says so
            return
        yield words


def _programs(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The program or module that a command runs, and what the wrappers before it may run, with their places."""
    wrapped = False
    for at, word in enumerate(words):
        name = PurePath(word).name
        if "=" in word or (wrapped and word.startswith("-")):
            continue
        if name.startswith("python"):
            for place, each in enumerate(words[at + 1 :], at + 1):
                if each == "-m" and place + 1 < len(words):
                    yield place + 1, words[place + 1]
                if not each.startswith("-"):
                    break
            return
        yield at, name
        wrapped |= name in _WRAPPERS
        if not wrapped or name.endswith((".py", ".sh")):
            return


def _is_launcher(name: str, following: Sequence[str]) -> bool:
    return name in _MODULES or (name in _LAUNCHERS and [*following[: len(_LAUNCHERS[name])]] == _LAUNCHERS[name])


def _program(arguments: Sequence[str]) -> str:
    """What a launcher is to run, as far as its arguments show it."""
    for at, word in enumerate(arguments):
        if word.endswith(".py"):
            return shlex.join(["python", *arguments[at:]])
        if word in ("-m", "--module"):
            return shlex.join(["python", "-m", *arguments[at + 1 :]])
    return "PROGRAM"


def _backends() -> list[str]:
    etcd = ["etcd", "etcd-v2"] if importlib.util.find_spec("etcd") else []
    return ["c10d", *etcd, *sorted(each.name for each in importlib.metadata.entry_points(group="torchrun.handlers"))]
