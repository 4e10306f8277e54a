"""Who reaches whom in the namespace of a test, and whether its cluster enforces NetworkPolicies."""

from typing import Any

from cluster import Namespace, Object, bystander, run, wait_for

STRANGER = "stranger"  # the pod that `enforces` leaves behind
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)"


def reaches(namespace: Namespace, pod: str, address: str, port: int) -> bool:
    command = ["kubectl", "--namespace", namespace.name, "exec", pod, "--", "python", "-c", _CONNECT]
    return run(*command, address, str(port), check=False).returncode == 0


def address(namespace: Namespace, pod: str) -> str:
    return namespace.kubectl("get", "pod", pod, "--output=jsonpath={.status.podIP}")


def enforces(namespace: Namespace) -> bool:
    """A pod that a policy closes is closed to another one."""
    server = ["python", "-m", "http.server", "8000"]
    namespace.apply(_closed("denied"))
    namespace.apply(bystander("denied", server, {"name": "denied"}))
    namespace.apply(bystander("open", server, {}))
    namespace.apply(bystander(STRANGER, ["sleep", "3600"], {}))
    wait_for("an open port", lambda: reaches(namespace, STRANGER, address(namespace, "open"), 8000))
    wait_for("another one", lambda: reaches(namespace, "denied", "127.0.0.1", 8000))
    return not reaches(namespace, STRANGER, address(namespace, "denied"), 8000)


def _closed(pod: str) -> Object:
    spec: dict[str, Any] = {"podSelector": {"matchLabels": {"name": pod}}, "policyTypes": ["Ingress"]}
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return {**kind, "metadata": {"name": pod}, "spec": spec}
