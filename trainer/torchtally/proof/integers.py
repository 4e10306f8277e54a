"""The one rule for lists of a few whole numbers."""

from typing import Any, TypeGuard


def are_in(value: Any, *allowed: range) -> TypeGuard[list[int]]:
    """Whether a value is a list of as many whole numbers, each within its range."""
    if not isinstance(value, list | tuple) or [type(each) for each in value] != [int] * len(allowed):
        return False
    return all(each in one for each, one in zip(value, allowed, strict=True))
