#!/usr/bin/env python3
"""Compare packages with the known vulnerabilities of OSV: `tools/audit.py [--image NAME] [--database DIR]`.

It runs osv-scanner, and needs only Python's standard library. Exit codes: 0 nothing to do, 1 vulnerable, 2 not checked.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LOCKS = [ROOT / "trainer/uv.lock", *sorted((ROOT / "docker").glob("requirements-*.txt")), ROOT / "tools/uv.txt"]
_WAITS = "Debian"  # its vulnerabilities are published before they are fixed


@dataclass(frozen=True, order=True)
class Finding:
    """A vulnerability of a package."""

    ecosystem: str
    package: str
    version: str
    names: str
    fixed: str  # empty: in no version yet

    @property
    def waits(self) -> bool:
        """Whether there is nothing to do yet."""
        return self.ecosystem.startswith(_WAITS) and not self.fixed

    def __str__(self) -> str:
        fixed = f"fixed in {self.fixed}" if self.fixed else "not fixed yet"
        return f"{self.ecosystem} {self.package} {self.version}: {self.names}, {fixed}"


class Unchecked(Exception):
    """Something could not be checked: one sentence."""


def scanned(what: list[str], database: Path | None) -> list[Finding]:
    """What osv-scanner finds."""
    with tempfile.TemporaryDirectory() as folder:
        where = ["--offline-vulnerabilities", "--download-offline-databases"]
        if database:
            Path(folder, "osv-scalibr").symlink_to(database.absolute())  # the name that osv-scanner expects
            where = ["--offline", "--local-db-path", folder]
        command = ["osv-scanner", "scan", *what, "--no-resolve", *where, "--format", "json"]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise Unchecked("osv-scanner is not on PATH: run tools/install.py osv-scanner") from None
    # It also ends with 0 if it has read an image and no database.
    if failed := re.search(r"could not load db for (\S+) ecosystem: (.*)", ended.stderr):
        raise Unchecked(f"the database {failed[1]}/all.zip cannot be read: {failed[2]}")
    if ended.returncode not in (0, 1):
        raise Unchecked(f"{' '.join(command)}: {(ended.stderr.strip().splitlines() or ['no message'])[-1]}")
    return list(_findings(json.loads(ended.stdout)))


def _findings(report: Any) -> Iterator[Finding]:
    for result in report["results"]:
        for each in result["packages"]:
            package = each["package"]
            by_id = {found["id"]: found for found in each.get("vulnerabilities", [])}
            for group in each.get("groups", []):
                fixed = {version for id_ in group["ids"] for version in _fixed(by_id[id_], package["name"])}
                names = ", ".join(sorted({*group["ids"], *(group.get("aliases") or [])}))
                ecosystem, name, version = package["ecosystem"], package["name"], package["version"]
                yield Finding(ecosystem, name, version, names, ", ".join(sorted(fixed)))


def _fixed(vulnerability: Any, package: str) -> Iterator[str]:
    for affected in vulnerability.get("affected", []):
        if affected["package"]["name"] == package:
            for range_ in affected.get("ranges", []):
                yield from (event["fixed"] for event in range_["events"] if "fixed" in event)


def check_databases(folder: Path) -> None:
    """Print how old each database is: an old one knows no new vulnerability."""
    if not (files := sorted(folder.glob("*/all.zip"))):
        raise Unchecked(f"{folder} has no database: NAME/all.zip")
    for file in files:
        try:
            with zipfile.ZipFile(file) as archive:
                dates = [each.date_time[:3] for each in archive.infolist() if each.filename.endswith(".json")]
        except (OSError, zipfile.BadZipFile) as error:
            raise Unchecked(f"{file} cannot be read: {error}") from None
        if not dates:
            raise Unchecked(f"{file} has no vulnerability")
        print(f"{file}: {len(dates)} vulnerabilities, the newest of {'{}-{:02}-{:02}'.format(*max(dates))}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare packages with the known vulnerabilities of OSV.")
    parser.add_argument("--image", help="check this image, or an archive by `docker save`, as well")
    parser.add_argument("--database", type=Path, metavar="DIR", help="folder with PyPI/all.zip, …; default: from OSV")
    parser.add_argument("locks", nargs="*", type=Path, default=LOCKS, help="lock files (default: those of torchtally)")
    options = parser.parse_args()
    try:
        if options.database:
            check_databases(options.database)
        found = scanned(["source", *(f"--lockfile={_parsed_as(lock)}" for lock in options.locks)], options.database)
        if image := options.image:
            archive = ["--archive"] if Path(image).is_file() else []
            found += scanned(["image", *archive, image], options.database)
    except Unchecked as sentence:
        print(f"audit: {sentence}", file=sys.stderr)
        return 2
    findings = sorted(set(found))
    for each in findings:
        print(f"{'-' if each.waits else '✗'} {each}")
    wrong = [each for each in findings if not each.waits]
    checked = f"{len(options.locks)} lock files" + (f" and {options.image}" if options.image else "")
    if wrong:
        print(f"✗ {len(wrong)} known vulnerabilities in {checked}")
    else:
        waiting = f", except {len(findings)} that {_WAITS} has not fixed yet" if findings else ""
        print(f"✓ no known vulnerability in {checked}{waiting}")
    return 1 if wrong else 0


def _parsed_as(lock: Path) -> str:
    """The file, in the form that names its format where its name does not."""
    return f"requirements.txt:{lock}" if lock.suffix == ".txt" else str(lock)


if __name__ == "__main__":
    sys.exit(main())
