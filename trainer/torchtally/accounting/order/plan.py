"""How much of its data a phase consumes: whole epochs, steps, tokens, or an epoch now and then."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchtally.accounting.order.schedule import Schedule
from torchtally.errors import Refused, as_int


@dataclass(frozen=True)
class Steps:
    """A plan of `count` steps of the optimizer, over as many epochs as that takes.

    A step takes a batch of each rank, or `accumulate` batches of each. The last step of an epoch takes what is left.
    """

    count: int
    accumulate: int = 1


@dataclass(frozen=True)
class Tokens:
    """A plan of at least `count` tokens in samples of `each` tokens, over as many epochs as that takes."""

    count: int
    each: int


@dataclass(frozen=True)
class Every:
    """A plan of an epoch after each `epochs` epochs of the plan's first phase, such as an evaluation."""

    epochs: int


Planned = int | Steps | Tokens | Every
Extent = tuple[int, int | None]  # epochs, and the position before which the last one ends if not that of its order


def checked(plan: Mapping[str, Planned]) -> dict[str, Planned]:
    """The plan with an `int` for each of its numbers. Raises Refused."""
    found: dict[str, Planned] = {}
    for phase, planned in plan.items():
        given = asdict(planned) if isinstance(planned, Steps | Tokens | Every) else {"epochs": planned}
        least = 1 if isinstance(planned, Steps | Tokens | Every) else 0
        numbers = {name: as_int(value) for name, value in given.items()}
        if not all(type(number) is int and number >= least for number in numbers.values()):
            raise Refused(f"the plan of {phase} is {planned}: it must have whole numbers from {least}")
        found[phase] = type(planned)(**numbers) if isinstance(planned, Steps | Tokens | Every) else numbers["epochs"]
    for phase, planned in [*found.items()][:1]:
        if isinstance(planned, Every):
            raise Refused(f"the plan of {phase} is {planned}: it must come after the phase whose epochs it counts")
    return found


def as_values(plan: Mapping[str, Planned]) -> dict[str, Any]:
    """The plan as JSON has it."""
    return {
        phase: planned if isinstance(planned, int) else {type(planned).__name__.lower(): asdict(planned)}
        for phase, planned in plan.items()
    }


def extent(planned: Steps | Tokens, whole: Schedule) -> Extent:
    """How far a plan reaches in a phase that has these steps in a whole epoch."""
    if isinstance(planned, Steps):
        epochs, rest = divmod(planned.count, -(-whole.steps // planned.accumulate))
        rest *= planned.accumulate * whole.batch
    else:
        epochs, rest = divmod(-(-planned.count // planned.each), whole.total)
        rest = -(-rest // whole.batch) * whole.batch if whole.drop_last else rest
    if not rest:
        return epochs, None
    return epochs + 1, rest if rest < whole.shard.n else None  # where samples are repeated, an epoch has more than n
