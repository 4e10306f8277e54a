"""What a record says, for people."""

from torchtally import events
from torchtally.record.model import Straggler

_LOSES = {
    "data_wait": "its steps wait {} for data",
    "compute": "its steps compute for {}",
    "communication": "its messages to rank 0 and back take {}",
}


def of_straggler(straggler: Straggler | events.Straggler) -> str:
    """How a pod is slower than the others."""
    loses = _LOSES.get(straggler.loses_in or "", "its steps lose {}").format(_time(straggler.seconds or 0.0))
    return loses if straggler.others is None else f"{loses} (the others: {_time(straggler.others)})"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"
