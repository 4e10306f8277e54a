"""`torchtally check` in a real cluster: what it finds, and that it leaves nothing behind."""

import json
import sys

from cluster import Namespace, run

CHECK = (sys.executable, "-m", "torchtally.cli", "check", "--json")


def found(namespace: str) -> dict[str, dict[str, str]]:
    said = run(*CHECK, "-n", namespace, check=False).stdout
    return {each["check"]: each for each in map(json.loads, said.splitlines())}


def test_a_namespace_before_and_after_it_is_restricted(operator: None, namespace: Namespace) -> None:
    before = found(namespace.name)
    for check in ("cluster", "operator", "rights", "storage", "quota", "admission"):
        assert before[check]["level"] == "good", before[check]
    assert "init-container" not in before
    namespace.restrict()
    restricted = found(namespace.name)
    assert (restricted["admission"]["level"], restricted["init-container"]["level"]) == ("good", "warning")
    namespace.kubectl("create", "quota", "none", "--hard=pods=0")
    namespace.kubectl("wait", "--for=jsonpath={.status.hard.pods}=0", "--timeout=60s", "resourcequota/none")
    full = found(namespace.name)
    assert (full["quota"]["level"], full["admission"]["level"]) == ("bad", "bad")
    left = run("kubectl", "get", "pytorchjobs,pods", "-n", namespace.name, "--output=name").stdout
    assert left == ""
