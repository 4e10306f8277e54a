"""The manifest of a checkpoint: what it holds, and the size and SHA-256 of each of its files.

It is written last: a checkpoint without it, or that it does not describe, is not whole.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from torchtally.errors import Refused

MANIFEST = "manifest.json"
FORMAT = 3


@dataclass(frozen=True)
class File:
    """A file of a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint holds, and where in the run it was made."""

    torchtally: str  # version
    torch: str  # version
    run: str
    attempt: int
    epoch: int
    position: int  # samples of the epoch's order that are in the weights
    consumed: int  # the same over all epochs
    discarded: int  # samples known to be lost with restarts before
    world: int  # ranks that made it
    objects: dict[str, str]  # name -> kind
    account: dict[str, Any]  # the account's state
    files: dict[str, File]

    def contents(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def printed(self) -> bytes:
        """As the file holds it."""
        contents = self.contents()
        return json.dumps({"format": FORMAT, "sha256": _sha256(contents), "contents": contents}, indent=1).encode()


class Torn(Exception):
    """A checkpoint that is not whole: its text says what is wrong."""


def parse(data: bytes, url: str) -> Manifest:
    """Read the manifest of the checkpoint `url`. Raises Torn, and Refused for one in another format."""
    try:
        text = json.loads(data)
        version, contents = text["format"], text["contents"]
    except (ValueError, LookupError, TypeError):
        raise Torn("its manifest is damaged") from None
    if type(version) is int and version != FORMAT:
        raise Refused(
            f"the checkpoint {url} has format {version}, and this version of torchtally reads format {FORMAT}: use "
            "the version of torchtally that wrote it, or another folder"
        )
    if text.get("sha256") != _sha256(contents):
        raise Torn("its manifest is damaged")
    return of(contents)


def of(contents: dict[str, Any]) -> Manifest:
    """The manifest with these `contents`."""
    files = {name: File(**file) for name, file in contents["files"].items()}
    return Manifest(**contents | {"files": files})


def _sha256(contents: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()
