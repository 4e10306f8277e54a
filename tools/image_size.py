#!/usr/bin/env python3
"""Report the size of an image by layer and by package.

Sizes are in MB (10^6 bytes). The second size of a layer is its size in a registry: compressed with zstd, level 3, like
buildx with compression=zstd.
"""

import argparse
import json
import subprocess
import sys
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import zstandard
from tqdm import tqdm

LIMITS = Path(__file__).parent / "size-limits.json"
_MB = 1_000_000
_CHUNK = 1 << 20

# Runs in the image, to list the packages that its Python imports.
_PACKAGES = """
import json
from importlib.metadata import distributions
from pathlib import Path

sizes = {}
for each in distributions():
    files = [Path(each.locate_file(file)) for file in each.files or []]
    sizes[each.name] = sizes.get(each.name, 0) + sum(file.stat().st_size for file in files if file.is_file())
print(json.dumps(sizes))
"""


class Unreadable(Exception):
    """Docker cannot provide the data. The message is the reason."""


@dataclass(frozen=True)
class Layer:
    unpacked: int  # bytes
    compressed: int
    made_by: str


@dataclass(frozen=True)
class Report:
    image: str
    target: str  # cpu or cuda
    layers: list[Layer]
    packages: dict[str, int]  # bytes of each, the largest first

    @property
    def unpacked(self) -> int:
        return sum(layer.unpacked for layer in self.layers)

    @property
    def compressed(self) -> int:
        return sum(layer.compressed for layer in self.layers)

    def grown(self, limits: dict[str, float]) -> list[str]:
        """Return a message for each size above its limit in MB."""
        sizes = {
            "unpacked": self.unpacked,
            "compressed": self.compressed,
            "packages except torch": sum(size for name, size in self.packages.items() if name != "torch"),
            "trainer's layer": self.layers[-1].unpacked,
        }
        return [
            f"{self.image}: {name} is {sizes[name] / _MB:.1f} MB, but the limit in {LIMITS.name} is {limit} MB"
            for name, limit in limits.items()
            if sizes[name] > limit * _MB
        ]


def read(image: str) -> Report:
    """Measure an image. Raises Unreadable."""
    layers = _layers(image)
    sizes = json.loads(_docker("run", "--rm", "--network=none", "--entrypoint=python", image, "-c", _PACKAGES))
    environment = json.loads(_docker("image", "inspect", "--format={{json .Config.Env}}", image))
    return Report(
        image=image,
        target="cuda" if any(each.startswith("NVIDIA_") for each in environment) else "cpu",
        layers=layers,
        packages=dict(sorted(sizes.items(), key=lambda item: -item[1])),
    )


def _layers(image: str) -> list[Layer]:
    _docker("image", "inspect", image)
    sizes: dict[str, tuple[int, int]] = {}
    texts: dict[str, Any] = {}
    with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
        assert saving.stdout
        with tarfile.open(fileobj=saving.stdout, mode="r|") as archive:
            for member in tqdm(archive, desc="layers", unit="", disable=None, leave=False):
                if stream := archive.extractfile(member):
                    head = stream.read(1)
                    if head in (b"{", b"["):  # a layer begins with the name of a file
                        texts[member.name] = json.loads(head + stream.read())
                    else:
                        sizes[member.name] = _weigh(head, stream)
    [manifest] = texts["manifest.json"]
    made_by = [
        each.get("created_by", "") for each in texts[manifest["Config"]]["history"] if not each.get("empty_layer")
    ]
    return [Layer(*sizes[name], made) for name, made in zip(manifest["Layers"], made_by, strict=True)]


def _weigh(chunk: bytes, stream: IO[bytes]) -> tuple[int, int]:
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    unpacked = compressed = 0
    while chunk:
        unpacked += len(chunk)
        compressed += len(compressor.compress(chunk))
        chunk = stream.read(_CHUNK)
    return unpacked, compressed + len(compressor.flush())


def _docker(*arguments: str) -> str:
    try:
        result = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unreadable("docker is not on PATH") from None
    if result.returncode:
        raise Unreadable(result.stderr.strip().splitlines()[-1])
    return result.stdout


def as_text(report: Report) -> str:
    def row(*sizes: int, what: str) -> str:
        return "  ".join(f"{size / _MB:10,.1f}" for size in sizes) + f"  {what}"

    total = report.unpacked, report.compressed
    lines = [f"{'MB':>10}  {'zstd':>10}  layer"]
    lines += [row(each.unpacked, each.compressed, what=_short(each)) for each in report.layers]
    lines += [row(*total, what=report.image), "", f"{'MB':>10}  package"]
    lines += [row(size, what=name) for name, size in report.packages.items() if size >= _MB]
    rest = [size for size in report.packages.values() if size < _MB]
    return "\n".join([*lines, row(sum(rest), what=f"{len(rest)} smaller packages")])


def _short(layer: Layer) -> str:
    text = layer.made_by.removesuffix(" # buildkit")
    return text if len(text) <= 80 else f"{text[:79]}…"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", default="torchtally:cpu", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON with sizes in bytes instead of tables")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit in size-limits.json is exceeded")
    options = parser.parse_args()
    try:
        report = read(options.image)
    except Unreadable as reason:
        print(f"report: {reason}", file=sys.stderr)
        return 2
    totals: dict[str, Any] = {"unpacked": report.unpacked, "compressed": report.compressed}
    print(json.dumps(asdict(report) | totals, indent=1) if options.json else as_text(report))
    grown = report.grown(json.loads(LIMITS.read_text())[report.target]) if options.check else []
    for sentence in grown:
        print(f"report: {sentence}", file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
