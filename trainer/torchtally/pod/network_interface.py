"""The network interface that gloo and TensorPipe use; by default they resolve the host name."""

import contextlib
import os
import socket

import psutil

_VARIABLES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def choose(address: str, port: int) -> None:
    """Have gloo and TensorPipe use the interface with the route to this address, unless the environment sets one.

    TensorPipe would use the loopback interface, with a warning at most, if the host name does not resolve to the pod.
    """
    if name := route_to(address, port):
        for variable in _VARIABLES:
            os.environ.setdefault(variable, name)


def route_to(address: str, port: int) -> str | None:
    """The interface from which IPv4 packets to `address` are sent, or None if there is no route."""
    own = ""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect((address, port))  # selects a route and sends nothing
        own = udp.getsockname()[0]
    names = (name for name, found in psutil.net_if_addrs().items() if own in [each.address for each in found])
    return next(names, None)
