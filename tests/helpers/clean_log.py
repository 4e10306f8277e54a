"""The log of a successful run: each line has a known form, so it holds no traceback and no warning of a library."""

import json
import re

_PODS_NAME = re.compile(r"\[[a-z0-9.-]+\] ")  # which run_local puts before each line
_PREFIXES = ("TORCHTALLY {", "TORCHTALLY-EVENT {")
_FORMS = {
    "message": r"torchtally( local)?: \S.*",
    "epoch": r"epoch \d+/\d+: loss \d+\.\d+, test accuracy \d+\.\d+% \(\d+ of \d+\), [\d,]+ samples/s",
    "progress": r"train epoch \d+/\d+: step \d+ of \d+(, (epoch_)?loss \d+\.\d+)*",
    "header of the table": r"phase +epoch +pod +rank +expected +consumed +lost +duplicated",
    "row of the table": r"\w+ +\d+ +[a-z0-9.-]+ +\d+( +\d+){4}(  ✓ [^✗]+)?",
}
_KNOWN = re.compile("|".join(f"(?:{form})" for form in _FORMS.values()))


def assert_clean(log: str) -> None:
    """Fail with the lines of the log that have no known form."""
    assert log.strip(), "the log is empty"
    strange = [line for line in log.splitlines() if not _known(_PODS_NAME.sub("", line, count=1))]
    assert not strange, "lines of no known form in the log of a successful run:\n" + "\n".join(strange)


def _known(line: str) -> bool:
    if line.startswith(_PREFIXES):
        try:
            return isinstance(json.loads(line[line.index("{") :]), dict)
        except ValueError:
            return False  # two lines that mixed
    return _KNOWN.fullmatch(line) is not None and "Traceback" not in line
