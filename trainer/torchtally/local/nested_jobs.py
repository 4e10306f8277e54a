"""Jobs inside other objects: a List, an AppWrapper, and a trial of Katib."""

import json
import re
from collections.abc import Iterator
from typing import Any

_PARAMETER = re.compile(r"\$\{trialParameters\.([^}]+)\}")

Object = dict[str, Any]


def inside(document: Object) -> Iterator[Any] | None:
    """The objects that an object of the right shape wraps; None if it wraps none."""
    spec = document.get("spec", {})
    match document.get("kind"):
        case "List":
            return iter(document.get("items") or [])
        case "AppWrapper":
            old = spec.get("resources", {}).get("GenericItems", [])
            components = [each.get("template") for each in spec.get("components", [])]
            return iter([*components, *(each.get("generictemplate") for each in old)])
        case "Trial":
            return iter([spec["runSpec"]] if "runSpec" in spec else [])
        case "Experiment":
            return _trial(document, spec)
    return None


def _trial(document: Object, spec: Object) -> Iterator[Object]:
    """The first trial of an experiment: each parameter has its first value."""
    template = spec.get("trialTemplate", {})
    if not (trial := template.get("trialSpec")):
        return
    first = {each.get("name"): _first(each.get("feasibleSpace", {})) for each in spec.get("parameters", [])}
    values = {each.get("name"): first.get(each.get("reference"), "") for each in template.get("trialParameters", [])}
    text = _PARAMETER.sub(lambda found: json.dumps(values.get(found[1], found[0]))[1:-1], json.dumps(trial))
    found: Object = json.loads(text)
    name = document.get("metadata", {}).get("name", "trial")
    found["metadata"] = {"name": name, **found.get("metadata", {})}
    yield found


def _first(space: Object) -> str:
    return str(next(iter(space.get("list", [])), space.get("min", "")))
