"""The schema takes and refuses what an API server takes and refuses, field by field."""

import json
import re
from typing import Any

import jsonschema
import pytest
from verdicts import chart_schema, kept

# What the chart refuses beyond the API server: names that no object can have, and what a job cannot do without.
NARROWER = {"image.pullSecrets", "model.existingClaim", "model.dataSource", "terminationGracePeriodSeconds"}
# What only other fields tell, fields of Windows, and kinds of volumes that Kubernetes no longer has.
UNTOLD = re.compile(
    "divisor|windowsOptions|localhostProfile|seconds|successThreshold|Exists|hugepages|dataSource|matchExpressions"
    '|"key": ""|ephemeral|awsElastic|gcePersistent|fc|flocker|gitRepo|quobyte|scaleIO|storageos|sysctls|csi|size'
)


def closed(schema: Any) -> Any:
    """With the patterns of Python, for which $ also matches in front of a newline at the end."""
    if isinstance(schema, dict):
        return {re.sub(r"\$$", r"\\Z", key): closed(each) for key, each in schema.items() if key != "$schema"}
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    return re.sub(r"\$$", r"\\Z", schema) if isinstance(schema, str) else schema


@pytest.fixture(scope="module")
def validators() -> dict[str, jsonschema.Draft7Validator]:
    root = closed(chart_schema())
    found = {}
    for place in {place for place, *_ in kept()}:
        part = root
        for name in place.split("."):
            part = part["properties"][name]
        found[place] = jsonschema.Draft7Validator({"allOf": [part], "definitions": root["definitions"]})
    return found


def test_no_value_that_an_api_server_refuses_is_taken(validators: dict[str, Any]) -> None:
    refused = [(place, value) for place, value, legal in kept() if not legal]
    refused = [(place, value) for place, value in refused if not UNTOLD.search(f"{place} {json.dumps(value)}")]
    assert len(refused) > 1000
    assert [each for each in refused if validators[each[0]].is_valid(each[1])] == []


def test_no_value_that_an_api_server_takes_is_refused(validators: dict[str, Any]) -> None:
    taken = [(place, value) for place, value, legal in kept() if legal and place not in NARROWER]
    assert len(taken) > 4000
    assert [each for each in taken if not validators[each[0]].is_valid(each[1])] == []
