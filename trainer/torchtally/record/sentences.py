"""What a record says, and its times, for people."""

from datetime import UTC, datetime

from torchtally import events

_LOSES = {
    "data_wait": "its steps wait {} for data",
    "compute": "its steps compute for {}",
    "communication": "its messages to rank 0 and back take {}",
}


def of_straggler(straggler: events.Straggler) -> str:
    """How a pod is slower than the others."""
    loses = _LOSES.get(straggler.loses_in or "", "its steps lose {}").format(duration(straggler.seconds or 0.0))
    return loses if straggler.others is None else f"{loses} (the others: {duration(straggler.others)})"


def clock(moment: float | None) -> str:
    """The time of day, in UTC."""
    return "" if moment is None else f"{datetime.fromtimestamp(moment, UTC):%H:%M:%S}"


def date(moment: float) -> str:
    """The day and the time of day."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: float | None) -> str:
    """As `0.4 ms`, `42.1 s`, `3 min 20 s`, `2 h 5 min`, `4 days 3 h`; empty for None."""
    if seconds is None:
        return ""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days {hours % 24} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
