"""The network interface that gloo and TensorPipe use; by default they resolve the host name."""

import contextlib
import fcntl
import os
import socket
import struct

_SIOCGIFADDR = 0x8915  # netdevice(7): an interface's IPv4 address
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
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect((address, port))  # selects a route and sends nothing
        own = udp.getsockname()[0]
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no address
                request = struct.pack("256s", name.encode())
                if socket.inet_ntoa(fcntl.ioctl(udp, _SIOCGIFADDR, request)[20:24]) == own:
                    return name
    return None
