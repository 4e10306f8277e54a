"""Families of messages: the id that ends a message, and the row about it in the guide to failed jobs.

An id keeps its meaning. The module that raises a message has its family.
"""

import inspect
import re
from types import FrameType

_PAGE = "https://github.com/torchtally/torchtally/blob/main/docs/guides/job-failed.md"
_ID = re.compile(r" \[(T\d\d)\]")

# Modules below torchtally; of several prefixes, the longest counts.
FAMILIES = {
    "T01": ("cli", "commands", "tasks", "options", "training", "console"),
    "T02": ("environment", "pod", "monitoring"),
    "T03": ("pod.device",),
    "T04": ("datasets", "tasks.image_folder"),
    "T05": ("streams",),
    "T06": ("accounting",),
    "T07": ("accounting.order",),
    "T08": ("accounting.batches", "accounting.loader"),
    "T09": ("accounting.data",),
    "T10": ("accounting.ledger", "accounting.run.counting"),
    "T11": (
        "accounting.ledger.resume",
        "accounting.ledger.state",
        "accounting.run.progress",
        "accounting.run.restart",
        "accounting.run.stateful",
    ),
    "T12": ("accounting.proofs",),
    "T13": ("checkpoints", "training.artifacts", "training.results"),
    "T14": ("file_systems",),
    "T15": ("distributed",),
    "T16": ("pod.rendezvous", "distributed.shared_memory"),
    "T17": ("pod.retries",),
    "T18": ("integrations", "tasks.keras_mnist"),
    "T19": ("tasks.parameter_server",),
    "T20": ("spark",),
    "T21": ("local", "commands.local"),
    "T22": ("inject", "commands.observe"),
    "T23": ("cluster", "jobs"),
    "T24": ("verifier", "commands.verify", "commands.archived", "proof"),
}


def named_in(text: str) -> str | None:
    """The first id in a text."""
    found = _ID.search(text)
    return found[1] if found else None


def of_caller() -> str | None:
    """The id of the module that is making an exception, if that is one of this package."""
    frame = inspect.currentframe()
    while frame and _module(frame) in (__name__, "torchtally.errors"):
        frame = frame.f_back
    return of_module(_module(frame)) if frame else None


def _module(frame: FrameType) -> str:
    """Its full name, also where Python runs it as a program."""
    spec = frame.f_globals.get("__spec__")
    return spec.name if spec else ""


def of_module(name: str) -> str | None:
    """The id for a module's full name."""
    found = (
        (len(prefix), family) for family, prefixes in FAMILIES.items() for prefix in prefixes if _holds(prefix, name)
    )
    return max(found, default=(0, None))[1]


def _holds(prefix: str, module: str) -> bool:
    return f"{module}.".startswith(f"torchtally.{prefix}.")


def ended_by(text: str, family: str | None) -> str:
    """The text with one id, at its end."""
    return f"{_ID.sub('', text)} [{family}]" if family else text


def with_link(text: str) -> str:
    """The text with one id and its link at the end, for who prints it last."""
    family = named_in(text)
    return f"{ended_by(text, family)} {_PAGE}#{family.lower()}" if family else text
