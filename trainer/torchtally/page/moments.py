"""Times for people."""

from datetime import UTC, datetime


def clock(moment: float | None) -> str:
    """The time of day, in UTC."""
    return "" if moment is None else f"{datetime.fromtimestamp(moment, UTC):%H:%M:%S}"


def date(moment: float) -> str:
    """The day and the time of day."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: float) -> str:
    """`42.1 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
