"""What torchtally says."""

import re


def plain(text: str) -> str:
    """Without the ids of families and their links, which tests/docs/test_messages.py holds."""
    return re.sub(r" \[T\d\d\](?: https://\S+)?", "", text)
