"""A mistake of the user's."""


class BadInput(Exception):
    """What the user gave cannot be read; the text is a sentence."""
