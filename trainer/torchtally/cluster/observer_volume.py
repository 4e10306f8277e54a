"""How a pod of another's image carries the observer: in a volume of this name."""

from typing import Any

VOLUME = "torchtally-observer"


def carries(pod: Any) -> bool:
    """Whether a V1Pod has the volume."""
    return any(volume.name == VOLUME for volume in (pod.spec.volumes if pod.spec else None) or [])
