"""A Python with the packages of this one and nothing of torchtally, as any image with PyTorch has it."""

import subprocess
import sys
import sysconfig
from pathlib import Path


def made(folder: Path) -> Path:
    """A virtual environment in a folder; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.run([str(python), "-c", where], capture_output=True, text=True, check=True).stdout.strip())
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "torchtally" not in each.name and each.suffix != ".pth":
            (own / each.name).symlink_to(each)
    return python
