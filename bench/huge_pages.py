"""Large tensors in huge pages, as in torchtally's image."""

import os
import sys

TUNABLES = "glibc.malloc.hugetlb=1"


def start() -> None:
    """Start this program again with them: glibc reads the variable at its start alone."""
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = TUNABLES
        os.execv(sys.executable, sys.orig_argv)
