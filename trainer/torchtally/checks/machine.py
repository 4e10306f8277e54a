"""Checks of this machine that need no PyTorch."""

import re
import socket
from collections.abc import Iterator
from importlib import metadata

from torchtally.checks.finding import Finding, bad, good, warning

_OF_TRAINING = re.compile(r"([\w.-]+).*extra == ['\"]train['\"]")


def findings() -> Iterator[Finding]:
    yield _package()
    yield _network()


def _package() -> Finding:
    found = f"torchtally {metadata.version('torchtally')}"
    needed = [each[1] for text in metadata.requires("torchtally") or [] if (each := _OF_TRAINING.match(text))]
    if missing := [name for name in needed if not _is_installed(name)]:
        return warning("package", f"{found} without {', '.join(missing)}: training needs its extra `train`")
    return good("package", f"{found} with its extra `train`")


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _network() -> Finding:
    """gloo connects to the address to which the host name resolves."""
    name, interfaces = socket.gethostname(), ", ".join(each for _, each in socket.if_nameindex())
    try:
        addresses = sorted({str(each[4][0]) for each in socket.getaddrinfo(name, None)})
    except OSError as error:
        text = f"the host name {name} has no address ({error}): set GLOO_SOCKET_IFNAME to one of {interfaces}"
        return bad("network", text)
    return good("network", f"{name} is {', '.join(addresses)}; interfaces: {interfaces}")
