"""The state of an account as checkpoints have it: an entry of a dictionary, which is text."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchtally.accounting.guards.guards import Guards
from torchtally.accounting.ledger.state import State
from torchtally.accounting.run.attempt import Attempt
from torchtally.accounting.run.phases import Phases
from torchtally.accounting.run.progress import ANOTHER, Progress
from torchtally.errors import Refused
from torchtally.log import log

KEY = "torchtally"


def state(phases: Phases, progress: Progress, attempt: Attempt, guards: Guards, *, hashes: bool) -> dict[str, str]:
    """How far the run is, the same on every rank: `Account.state_dict`. Raises Refused."""
    phases.measure()
    trains = ((name, epochs) for name, epochs in phases.open.items() if epochs and phases.training[name])
    positions = {name: epochs.saved(progress.epochs[name]) for name, epochs in trains}
    found, weights = progress.state(attempt.run, positions), guards.saved if hashes else ()
    return {KEY: replace(found, weights=weights, caveats=tuple(guards.caveats)).to_text()}


def load(state: Mapping[str, Any], progress: Progress, attempt: Attempt, guards: Guards, *, reported: bool) -> None:
    """Continue at a state, unless that is `reported` already: `Account.load_state_dict`. Raises Refused."""
    if attempt.begun:
        raise Refused("load_state_dict() must be called before the first epoch of this start")
    if progress.loaded:
        raise Refused("load_state_dict() was called before in this start: an account takes one state")
    loaded = read(state)
    for name, value in (("task", attempt.run.task), ("seed", attempt.run.seed)):
        if (before := getattr(loaded, name)) != value:
            raise Refused(f"the state is of another run: its {name} is {before}, and now it is {value}; {ANOTHER}")
    progress.load(loaded)
    if progress.grown_from and attempt.prints:
        log.info(f"the plan has grown from {loaded.plan} to {progress.given}")
    guards.load(loaded)
    attempt.take_up(loaded, reported=reported, grown=progress.grown_from is not None)


def read(state: Mapping[str, Any]) -> State:
    """Return the state in an entry of a dictionary. Raises Refused."""
    if not isinstance(state, Mapping):
        raise Refused(f"the state of an account must be what state_dict() returned, not a {type(state).__name__}")
    if KEY not in state:
        found = ", ".join(map(str, state)) or "no entry"
        raise Refused(
            f"the state of an account must have the entry {KEY!r}, and it has {found}: load what state_dict() returned"
        )
    try:
        return State.from_text(state[KEY])
    except ValueError as error:
        raise Refused(f"the state of the account cannot be loaded: {error}; pass what state_dict() returned") from None
