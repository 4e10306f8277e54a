"""The Java runtime that Spark uses: finding it, checking its version, and redirecting its log."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torchtally.errors import Refused

_CLASS_FILE_OFFSET = 44  # a class file's major version minus its Java version


def check(pyspark: Path, env: Mapping[str, str] = os.environ) -> None:
    """Raise Refused if no Java is found that can run the Spark in the folder `pyspark`."""
    needed = minimum_version(pyspark)
    home = env.get("JAVA_HOME")
    java = str(Path(home, "bin/java")) if home else shutil.which("java", path=env.get("PATH"))
    where = f"JAVA_HOME={home}" if home else "PATH"
    if java is None:
        raise Refused(
            f"Spark needs Java {needed} or newer: `java` is not on PATH, and JAVA_HOME is not set "
            f"(Debian package: openjdk-{needed}-jre-headless)"
        )
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"Spark needs Java {needed} or newer; {where}: {error}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if not found or int(found[1]) < needed:
        version = found[1] if found else f"unknown ({output.strip().splitlines()[:1]})"
        raise Refused(f"Spark needs Java {needed} or newer; {where} has {java}, version {version}")


def minimum_version(pyspark: Path) -> int:
    """The oldest Java version that can load this Spark's classes."""
    (jar,) = (pyspark / "jars").glob("spark-launcher_*.jar")
    with zipfile.ZipFile(jar) as classes, classes.open("org/apache/spark/launcher/Main.class") as main:
        return int.from_bytes(main.read(8)[6:]) - _CLASS_FILE_OFFSET


@contextmanager
def redirected_to(file: Path) -> Iterator[None]:
    """Redirect standard output and error to `file`, for this process and for those that it starts meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    originals = [(stream, os.dup(stream)) for stream in (1, 2)]
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for stream, _ in originals:
            os.dup2(log, stream)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, original in originals:
            os.dup2(original, stream)
            os.close(original)
        os.close(log)
