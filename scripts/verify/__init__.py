"""The parts of verify_shards: lines, closing and fields (read), expected (recompute), wrong (what a digest says), whole
(what the last line says), verdict (compare), words, told and report (show), cluster (fetch)."""

import importlib.util
import sys
from pathlib import Path

if not importlib.util.find_spec("torchtally"):  # not installed: the checkout that this script came with will do
    sys.path.append(str(Path(__file__).resolve().parents[2] / "trainer"))
