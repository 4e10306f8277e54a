#!/usr/bin/env python3
"""`torchtally jobs`, from a clone."""

import sys

from from_clone import main

if __name__ == "__main__":
    sys.exit(main("jobs"))
