"""The audit, with databases of known content: it finds what is planted, and passes what is clean."""

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

AUDIT = Path(__file__).parents[2] / "tools/audit.py"
OS_RELEASE = 'ID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\n'
OPENSSL = "Package: libssl3t64\nStatus: install ok installed\nSource: openssl\nVersion: 3.5.1-1\n\n"
DEBIAN = {"etc/os-release": OS_RELEASE, "var/lib/dpkg/status": OPENSSL}


@pytest.fixture(autouse=True)
def scanner() -> None:
    if not shutil.which("osv-scanner"):
        pytest.skip("osv-scanner is not on PATH: tools/install.py osv-scanner builds it")


def vulnerability(id_: str, ecosystem: str, package: str, fixed: str | None) -> dict[str, Any]:
    """One of all versions before `fixed`."""
    events = [{"introduced": "0"}, *([{"fixed": fixed}] if fixed else [])]
    affected = {
        "package": {"ecosystem": ecosystem, "name": package},
        "ranges": [{"type": "ECOSYSTEM", "events": events}],
    }
    return {"schema_version": "1.6.0", "id": id_, "modified": "2026-01-01T00:00:00Z", "affected": [affected]}


def database(folder: Path, **of: list[dict[str, Any]]) -> Path:
    """The folder that OSV_DB names."""
    for name, vulnerabilities in of.items():
        (folder / name).mkdir(parents=True)
        with zipfile.ZipFile(folder / name / "all.zip", "w") as archive:
            for each in vulnerabilities:
                archive.writestr(f"{each['id']}.json", json.dumps(each))
    return folder


def lock(folder: Path, *packages: str) -> Path:
    path = folder / "requirements-test.txt"
    path.write_text("".join(f"{package} \\\n    --hash=sha256:{'0' * 64}\n" for package in packages))
    return path


def image(path: Path, files: dict[str, str]) -> Path:
    """What `docker save` would write for an image of these files."""
    layer = tar({name: text.encode() for name, text in files.items()})
    diff = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    rootfs, history = {"type": "layers", "diff_ids": [diff]}, [{"created_by": "test"}]
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs, "history": history}
    manifest = [{"Config": "config.json", "RepoTags": ["test:test"], "Layers": ["layer.tar"]}]
    parts = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    path.write_bytes(tar({**parts, "layer.tar": layer}))
    return path


def tar(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return written.getvalue()


def audit(*arguments: str | Path) -> tuple[int, str]:
    ended = subprocess.run([sys.executable, AUDIT, *arguments], capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


KNOWN = vulnerability("PYSEC-2026-1", "PyPI", "aiohttp", "3.14.6")


def test_a_vulnerable_lock_is_found_and_a_clean_one_passes(tmp_path: Path) -> None:
    known = database(tmp_path / "osv", PyPI=[KNOWN])
    code, said = audit("--database", known, lock(tmp_path, "aiohttp==3.14.5", "numpy==2.4.0"))
    assert code == 1
    assert "✗ PyPI aiohttp 3.14.5: PYSEC-2026-1, fixed in 3.14.6\n✗ 1 known vulnerabilities in 1 lock files" in said
    code, said = audit("--database", known, lock(tmp_path, "aiohttp==3.14.6", "numpy==2.4.0"))
    assert (code, said.splitlines()[-1]) == (0, "✓ no known vulnerability in 1 lock files")


def test_the_locks_of_torchtally_are_read(tmp_path: Path) -> None:
    every = [vulnerability(f"PYSEC-2026-{i}", "PyPI", name, None) for i, name in enumerate(("torch", "pytest", "uv"))]
    code, said = audit("--database", database(tmp_path / "osv", PyPI=every))
    assert code == 1
    for name in ("torch", "pytest", "uv"):  # of the image, of the tests, and of their environment
        assert f"✗ PyPI {name} " in said


def test_packages_of_an_image_are_found(tmp_path: Path) -> None:
    package = "Metadata-Version: 2.1\nName: aiohttp\nVersion: 3.14.5\n"
    metadata = "opt/torchtally/venv/lib/python3.13/site-packages/aiohttp-3.14.5.dist-info/METADATA"
    own = image(tmp_path / "image.tar", {**DEBIAN, metadata: package})
    clean = lock(tmp_path, "numpy==2.4.0")
    fixed = vulnerability("DSA-1-1", "Debian:13", "openssl", "3.5.1-2")
    code, said = audit("--database", database(tmp_path / "a", PyPI=[KNOWN], Debian=[fixed]), "--image", own, clean)
    assert code == 1
    assert "✗ Debian:13 openssl 3.5.1-1: DSA-1-1, fixed in 3.5.1-2\n" in said
    assert "✗ PyPI aiohttp 3.14.5: PYSEC-2026-1, fixed in 3.14.6\n" in said

    own = image(tmp_path / "image.tar", DEBIAN)
    unfixed = vulnerability("CVE-2026-1", "Debian:13", "openssl", None)
    code, said = audit("--database", database(tmp_path / "b", PyPI=[KNOWN], Debian=[unfixed]), "--image", own, clean)
    assert code == 0
    assert "- Debian:13 openssl 3.5.1-1: CVE-2026-1, not fixed yet\n" in said
    assert ", except 1 that Debian has not fixed yet" in said


def test_what_cannot_be_checked_does_not_pass(tmp_path: Path) -> None:
    """osv-scanner itself reports an image as clean if it has no database."""
    clean, own = lock(tmp_path, "numpy==2.4.0"), image(tmp_path / "image.tar", DEBIAN)
    known = database(tmp_path / "osv", PyPI=[KNOWN])
    code, said = audit("--database", known, "--image", own, clean)
    assert code == 2
    assert "audit: the database Debian/all.zip cannot be read" in said
    database(known, Debian=[])
    code, said = audit("--database", known, "--image", own, clean)
    assert (code, said.splitlines()[-1]) == (2, f"audit: {known}/Debian/all.zip has no vulnerability")
    code, said = audit("--database", tmp_path, clean)
    assert (code, said) == (2, f"audit: {tmp_path} has no database: NAME/all.zip\n")
    code, said = audit("--database", known, tmp_path / "absent.txt")
    assert code == 2
