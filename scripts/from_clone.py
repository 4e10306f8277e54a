"""Runs a command of torchtally as this clone has it, for the programs beside."""

import sys
from pathlib import Path


def main(command: str) -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "trainer"))
    try:
        from torchtally import cli

        return cli.main([command, *sys.argv[1:]])
    except ModuleNotFoundError as error:
        missing = f"the Python package {error.name} is missing"
        print(f"torchtally {command}: {missing}: run `make scripts`, then `. .venv/bin/activate`", file=sys.stderr)
        return 2
