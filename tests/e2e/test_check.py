"""`torchtally check` in a real cluster: what it finds, and that it leaves nothing behind."""

import json
import sys
from pathlib import Path

from cluster import Namespace, run

CHECK = (str(Path(sys.executable).with_name("torchtally")), "check", "--json")


def found(namespace: str) -> dict[str, dict[str, str]]:
    ended = run(*CHECK, "-n", namespace, check=False)
    assert not ended.stderr
    return {each["check"]: each for each in map(json.loads, ended.stdout.splitlines())}


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
