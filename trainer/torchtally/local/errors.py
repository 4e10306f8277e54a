"""What the user is told in one sentence, without a traceback."""


class Refused(Exception):
    """The manifest, or the command line, cannot be run as it is."""


class EngineError(Exception):
    """The container engine did not do what was asked; the text is its own."""
