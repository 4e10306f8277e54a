"""The addresses on which a pod listens: no more of them than its peers need."""

import ipaddress
import os
import socket
import sys

from torchtally.environment import Job, job_host, variable

LOOPBACK = "127.0.0.1"
_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
_BACKLOG = 4096  # connections that wait: all ranks of a job connect at once


def is_loopback(address: str) -> bool:
    """Whether it is a number of the loopback network. A name can stand for another address on another pod."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def keep_on_loopback(job: Job) -> None:
    """Have gloo and TensorPipe listen on loopback, if all pods are there and the environment names no interface.

    By default they listen on the address of the host's name.
    """
    host = job.master[0] if job.master else job_host()
    if (job.max_nodes == 1 and not job.elastic) or (host and is_loopback(host)):
        for variable in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            os.environ.setdefault(variable, _INTERFACE)


def of_metrics() -> list[str]:
    """The addresses of a pod's metrics: those given, or loopback and, in a job of several hosts, the pod's own."""
    if chosen := variable("TORCHTALLY_METRICS_ADDRESS"):
        return [chosen]
    host = job_host()
    if host is None or is_loopback(host):
        return [LOOPBACK]
    # Kubernetes writes the pod's address into its hosts file.
    return [LOOPBACK, *found] if (found := _addresses(socket.gethostname())) else ["0.0.0.0"]


def listener(address: str, port: int, count: int) -> socket.socket | None:
    """A socket that listens for `count` pods, which know this one by `address`; None if it must be all interfaces.

    Raises OSError if the port is taken.
    """
    if (chosen := _chosen(address, count)) is None:
        return None
    made = socket.socket(socket.AF_INET6 if ":" in chosen else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a pod that is started again takes the same port
        made.bind((chosen, port))
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _chosen(address: str, count: int) -> str | None:
    if count == 1:
        return LOOPBACK
    if is_loopback(address):
        return address
    # A pod's Service, which carries the pod's name, may not be known yet: the hosts file is.
    name = socket.gethostname()
    of_host = address.partition(".")[0] == name.partition(".")[0]
    found = _addresses(name if of_host else address)
    # Of several, any can be the one by which another pod knows this one.
    return found[0] if len(found) == 1 and _is_own(found[0]) else None


def _addresses(name: str) -> list[str]:
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return []
    return sorted(each for each in found if not is_loopback(each))


def _is_own(address: str) -> bool:
    """Whether it is an address of this machine: that of a Service or of a router is not."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
