"""Durations as users write them: `"5m"`, or a number of seconds."""

import re

from torchtally.errors import Refused

_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(field: str, value: str | float) -> float:
    """Return `value` in seconds. Raises Refused, with the field's name."""
    seconds = 0.0
    if isinstance(value, str) and (match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh])", value, re.ASCII)):
        seconds = float(match[1]) * _UNITS[match[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    if not 0 < seconds <= 1e9:
        raise Refused(f"{field}={value!r} must be a number of seconds above 0, or a number with s, m, or h: '5m'")
    return seconds
