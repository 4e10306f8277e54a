#!/usr/bin/env python3
"""Write trainer/torchtally/page/vega.js: Vega, Vega-Lite, and Vega-Embed, as the package vl-convert-python has them.

The trainer carries the file, so that it can draw a page without this package and without a network.
"""

import sys
from importlib.metadata import version
from pathlib import Path

import vl_convert

FILE = Path(__file__).resolve().parents[1] / "trainer/torchtally/page/vega.js"
_SNIPPET = "window.vegaEmbed = vegaEmbed;"


def bundle() -> str:
    """The contents of the file."""
    code = vl_convert.javascript_bundle(_SNIPPET)
    # It stands in a script element, which these would end or change, and \r would not arrive there as it is.
    for end in ("</script", "<script", "<!--"):
        code = code.replace(end, f"\\x3c{end[1:]}")
    assert "\r" not in code and "\0" not in code
    return header() + code.rstrip() + "\n"


def header() -> str:
    package = f"vl-convert-python {version('vl-convert-python')}"
    return f"// Vega, Vega-Lite, and Vega-Embed. Made by `make vega` from {package}. License: BSD-3-Clause.\n"


if __name__ == "__main__":
    FILE.write_text(bundle(), encoding="utf-8")
    print(f"vega: wrote {FILE} ({FILE.stat().st_size:,} bytes)", file=sys.stderr)
