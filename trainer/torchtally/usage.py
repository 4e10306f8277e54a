"""A mistake on a command line is one sentence, as any other bad input: argparse would print its usage in each pod."""

import argparse
from typing import NoReturn

from torchtally.errors import Refused


class Parser(argparse.ArgumentParser):
    """Raises Refused in place of the end of the process; its subparsers do so, too."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; `{self.prog} --help` lists the options")
