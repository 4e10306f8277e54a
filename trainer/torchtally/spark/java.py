"""The Java that Spark runs on: found as Spark finds it, tried out, and told where to write its log."""

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

_CLASS_FILES = 44  # a class file's version is its Java's, and so much


def check(pyspark: Path, env: Mapping[str, str] = os.environ) -> None:
    """Raise Refused if there is no Java that the Spark in the folder `pyspark` can run on."""
    needed = needs(pyspark)
    home = env.get("JAVA_HOME")
    java = str(Path(home, "bin/java")) if home else shutil.which("java", path=env.get("PATH"))
    where = f"JAVA_HOME={home}" if home else "PATH"
    if java is None:
        raise Refused(
            f"Spark needs a Java runtime of version {needed} or newer, and there is no `java` on PATH and no "
            f"JAVA_HOME (Debian's package: openjdk-{needed}-jre-headless)"
        )
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"Spark needs a Java runtime of version {needed} or newer; {where}: {error}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if not found or int(found[1]) < needed:
        version = found[1] if found else f"unknown ({said.strip().splitlines()[:1]})"
        raise Refused(f"Spark needs a Java runtime of version {needed} or newer; that of {where} is {java}, {version}")


def needs(pyspark: Path) -> int:
    """The oldest Java that can load this Spark's own classes."""
    (jar,) = (pyspark / "jars").glob("spark-launcher_*.jar")
    with zipfile.ZipFile(jar) as classes, classes.open("org/apache/spark/launcher/Main.class") as main:
        return int.from_bytes(main.read(8)[6:]) - _CLASS_FILES


@contextmanager
def logs_to(file: Path) -> Iterator[None]:
    """What is started meanwhile, and this process itself, writes to `file` instead of to standard output and error."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(each, os.dup(each)) for each in (1, 2)]
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for each, _ in kept:
            os.dup2(log, each)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for each, own in kept:
            os.dup2(own, each)
            os.close(own)
        os.close(log)
