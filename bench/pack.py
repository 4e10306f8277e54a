"""What `make bench-gpu` takes along beside the checkout: data, and wheels for a machine that has PyTorch.

python -m bench.pack            fills build/bench-gpu, where there is a network
python -m bench.pack install    installs those of the wheels that this Python lacks, where there is none
"""

import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = Path("build/bench-gpu").absolute()
MADE = FOLDER.with_name("bench-gpu-made")  # of it where it is measured: nothing to take along
CACHE, TEXT, COMMIT = FOLDER / "cache", FOLDER / "text", FOLDER / "commit"
_WHEELS, _SITE = FOLDER / "wheels", MADE / "site"
_IMAGES = {"image-folder-64": 960, "image-folder-224": 160}  # files; a GPU is given them under more names
_TEXT = ("nn", "optim")  # packages of torch, whose source is a text of 2.4 MB
_PROJECT, _LOCK = Path("trainer/pyproject.toml"), Path("trainer/uv.lock")
_PEERS = ("accelerate", "lightning", "psutil")
_PYTHON = "3.12"  # of wheels that are not pure
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
_LARGE = 4 << 20  # bytes of a wheel that is left out
_MOST = 56 << 20  # bytes of all


def main() -> int:
    if sys.argv[1:] == ["install"]:
        return install()
    return fill()


def fill() -> int:
    """Make the folder anew. Returns the exit code."""
    from bench import machine
    from bench.peers import images  # imports torchvision

    shutil.rmtree(FOLDER, ignore_errors=True)
    _fashion_mnist()
    for task, count in _IMAGES.items():
        images.make(CACHE / "bench" / task, images.SIZES[task], count)
    _text()
    _wheels()
    COMMIT.write_text(machine.commit())
    size = _size(FOLDER)
    print(f"{FOLDER} has {size / 2**20:.1f} MiB: {', '.join(_part(each) for each in sorted(FOLDER.iterdir()))}")
    if size > _MOST:
        print(f"that is more than {_MOST >> 20} MiB", file=sys.stderr)
        return 1
    return 0


def install() -> int:
    """Install what is lacking into a folder for PYTHONPATH. Returns the exit code."""
    shutil.rmtree(_SITE, ignore_errors=True)
    _SITE.mkdir(parents=True)
    lacking = [str(wheel) for wheel in sorted(_WHEELS.glob("*.whl")) if not _installed(wheel.name.partition("-")[0])]
    if lacking:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(_SITE)]
        if code := subprocess.run([*pip, *lacking]).returncode:
            return code
    # The package itself is in the checkout, and looks up its own version.
    version = tomllib.loads(_PROJECT.read_text())["project"]["version"]
    about = _SITE / f"torchtally-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torchtally\nVersion: {version}\n")
    names = [Path(wheel).name.partition("-")[0] for wheel in lacking]
    print(f"bench-gpu: installed {', '.join(names) or 'nothing'} beside {sys.executable}", file=sys.stderr)
    return 0


def _fashion_mnist() -> None:
    from torchtally.datasets import idx
    from torchtally.environment import Places

    cache = Places.from_env(os.environ).cache
    idx.load(idx.FASHION_MNIST, None, cache)
    name = idx.FASHION_MNIST.name
    shutil.copytree(cache / name, CACHE / name, ignore=shutil.ignore_patterns(".*"))


def _text() -> None:
    import torch

    root = Path(torch.__file__).parent
    for name in _TEXT:
        for file in sorted((root / name).rglob("*.py")):
            to = TEXT / file.relative_to(root)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)


def _wheels() -> None:
    """Download what this project needs in the locked versions, but for what comes with PyTorch and torchvision."""
    names = _needed((*_PEERS, *_own())) - _needed(("torch", "torchvision"))
    locked = _locked()
    pip = ["uv", "tool", "run", "--quiet", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    pip += ["--python-version", _PYTHON, "--implementation", "cp", "--dest", str(_WHEELS)]
    pip += [f"--platform={each}" for each in _PLATFORMS]
    subprocess.run([*pip, *(f"{name}=={locked[name]['version']}" for name in sorted(names))], check=True)
    for wheel in _WHEELS.iterdir():
        if wheel.stat().st_size > _LARGE:
            print(f"{wheel.name} is left out: it has {wheel.stat().st_size / 2**20:.1f} MiB")
            wheel.unlink()


def _locked() -> dict[str, Any]:
    """The packages of the lock file, by name."""
    return {each["name"]: each for each in tomllib.loads(_LOCK.read_text())["package"]}


def _own() -> list[str]:
    """The requirements of this package, where it trains."""
    own = _locked()["torchtally"]
    return [each["name"] for each in own["dependencies"] + own["optional-dependencies"]["train"]]


def _needed(roots: tuple[str, ...]) -> set[str]:
    """These packages, and what they require on Linux according to the lock file."""
    from packaging.markers import Marker

    packages = _locked()
    system = {"sys_platform": "linux", "python_version": _PYTHON, "python_full_version": f"{_PYTHON}.0"}
    found: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        for each in packages[name].get("dependencies", []):
            if "marker" not in each or Marker(each["marker"]).evaluate(system):
                left.append(each["name"])
    return found


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file()) or path.stat().st_size


def _part(path: Path) -> str:
    return f"{path.name} {_size(path) / 2**20:.1f}"


if __name__ == "__main__":
    sys.exit(main())
