"""Which network interface leads to the other pods: by themselves, gloo and TensorPipe go by the host's name."""

import contextlib
import fcntl
import os
import socket
import struct

_SIOCGIFADDR = 0x8915  # netdevice(7): an interface's IPv4 address
_CHOSEN_BY = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def choose(address: str, port: int) -> None:
    """Let gloo and TensorPipe use the interface that leads to this address, unless the environment names another.

    TensorPipe takes the loopback where the name leads to no address of this pod, and warns at most.
    """
    if name := towards(address, port):
        for variable in _CHOSEN_BY:
            os.environ.setdefault(variable, name)


def towards(address: str, port: int) -> str | None:
    """The interface with the IPv4 address that packets to `address` are sent from; None where there is none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect((address, port))  # chooses a route, and sends nothing
        own = unsent.getsockname()[0]
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # has no address
                request = struct.pack("256s", name.encode())
                if socket.inet_ntoa(fcntl.ioctl(unsent, _SIOCGIFADDR, request)[20:24]) == own:
                    return name
    return None
