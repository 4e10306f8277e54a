"""Families of messages: the id that ends a message, and the part of the reference about it.

An id never gets another meaning. The modules that raise a message, by the longest prefix, are its family.
"""

import inspect
import re
from dataclasses import dataclass

PAGE = "https://github.com/torchtally/torchtally/blob/main/docs/reference/messages.md"
_ID = re.compile(r" \[(T\d\d)\]")


@dataclass(frozen=True)
class Family:
    id: str
    title: str
    modules: tuple[str, ...]  # below torchtally

    @property
    def link(self) -> str:
        """The part of the reference about it."""
        slug = f"{self.id}-{self.title}".lower().replace(" ", "-")
        return f"{PAGE}#{slug}"


FAMILIES = (
    Family("T01", "Commands", ("cli", "commands", "tasks", "options", "training")),
    Family("T02", "Environment variables", ("environment", "pod", "monitoring")),
    Family("T03", "GPUs", ("pod.device", "accounting.order.cuda")),
    Family("T04", "Data of tasks", ("datasets", "tasks.image_folder", "tasks.gpt")),
    Family("T05", "Shard files", ("streams",)),
    Family("T06", "Arguments of an account", ("accounting",)),
    Family("T07", "Order of samples", ("accounting.order",)),
    Family("T08", "Loaders", ("accounting.batches", "accounting.loader")),
    Family("T09", "Mixtures and packing", ("accounting.data",)),
    Family("T10", "Training loop", ("accounting.ledger", "accounting.run.counting")),
    Family(
        "T11",
        "Resume",
        ("accounting.ledger.state", "accounting.ledger.resume", "accounting.run.stateful", "accounting.run.progress"),
    ),
    Family("T12", "Guards", ("accounting.guards",)),
    Family("T13", "Proof", ("accounting.proofs",)),
    Family("T14", "Checkpoints", ("checkpoints", "training.artifacts", "training.results")),
    Family("T15", "Storage", ("file_systems", "atomic_file")),
    Family("T16", "Ranks that differ", ("distributed",)),
    Family("T17", "Lost ranks and pods", ("pod.rendezvous", "distributed.shared_memory")),
    Family("T18", "Retries", ("pod.retries",)),
    Family("T19", "Training libraries", ("integrations", "tasks.keras_mnist")),
    Family("T20", "Parameter server", ("tasks.parameter_server",)),
    Family("T21", "Spark", ("spark",)),
    Family("T22", "Jobs on this machine", ("local", "commands.local")),
    Family("T23", "Observation", ("inject", "commands.observe")),
    Family("T24", "Clusters", ("cluster", "jobs")),
    Family("T25", "Verifier", ("verifier", "commands.verify", "commands.archived", "proof")),
)
_BY_ID = {family.id: family for family in FAMILIES}


def named_in(text: str) -> str | None:
    """The first id in a text."""
    found = _ID.search(text)
    return found[1] if found else None


def of_caller() -> str | None:
    """The id of the module that is making an exception, if that is one of this package."""
    frame = inspect.currentframe()
    while frame and frame.f_globals.get("__name__") in (__name__, "torchtally.errors"):
        frame = frame.f_back
    return of_module(frame.f_globals.get("__name__", "")) if frame else None


def of_module(name: str) -> str | None:
    """The id for a module's full name."""
    found = ((len(prefix), family.id) for family in FAMILIES for prefix in family.modules if _holds(prefix, name))
    return max(found, default=(0, None))[1]


def _holds(prefix: str, module: str) -> bool:
    return f"{module}.".startswith(f"torchtally.{prefix}.")


def ended_by(text: str, family: str | None) -> str:
    """The text with one id, at its end."""
    return f"{_ID.sub('', text)} [{family}]" if family else text


def with_link(text: str) -> str:
    """The text with one id, and in a line of its own the link, for who prints it last."""
    family = named_in(text)
    return f"{ended_by(text, family)}\nsee {_BY_ID[family].link}" if family in _BY_ID else text
