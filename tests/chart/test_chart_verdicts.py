"""The schema takes and refuses what an API server takes and refuses, field by field."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from verdicts import chart_schema, kept

# What the chart refuses beyond the API server: names that no object can have, and what a job cannot do without.
NARROWER = {"image.pullSecrets", "model.existingClaim", "model.dataSource", "terminationGracePeriodSeconds"}
# How many values of a field the schema takes and an API server refuses: what only other fields tell, lengths, ranges,
# fields of Windows, and kinds of volumes that Kubernetes no longer has.
UNTOLD = {
    "env.valueFrom.resourceFieldRef.divisor": 7,
    "model.size": 2,
    "podSecurityContext.sysctls.name": 1,
    "securityContext.appArmorProfile.localhostProfile": 1,
    "securityContext.windowsOptions.gmsaCredentialSpec": 1,
    "securityContext.windowsOptions.gmsaCredentialSpecName": 21,
    "securityContext.windowsOptions.runAsUserName": 11,
    "sidecars.lifecycle.postStart.sleep.seconds": 6,
    "sidecars.livenessProbe.successThreshold": 5,
    "tolerations.key": 1,
    "tolerations.value": 31,
    "volumes.awsElasticBlockStore.partition": 5,
    "volumes.csi.driver": 1,
    "volumes.ephemeral.volumeClaimTemplate.spec.dataSource.apiGroup": 21,
    "volumes.ephemeral.volumeClaimTemplate.spec.dataSourceRef.apiGroup": 21,
    "volumes.ephemeral.volumeClaimTemplate.spec.selector.matchExpressions.operator": 15,
    "volumes.ephemeral.volumeClaimTemplate.spec.storageClassName": 20,
    "volumes.ephemeral.volumeClaimTemplate.spec.volumeAttributesClassName": 20,
    "volumes.fc.lun": 5,
    "volumes.flocker.datasetName": 7,
    "volumes.flocker.datasetUUID": 1,
    "volumes.gcePersistentDisk.partition": 5,
    "volumes.gitRepo.directory": 4,
    "volumes.quobyte.registry": 30,
    "volumes.scaleIO.volumeName": 1,
    "volumes.storageos.volumeName": 26,
}


def fields(value: Any, where: str) -> Iterator[str]:
    """The names of all strings and numbers in it, those of the items of a list without their places."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from fields(each, f"{where}.{key}")
    elif isinstance(value, list):
        for each in value:
            yield from fields(each, where)
    else:
        yield where


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
    assert len(refused) > 1500
    taken = [(place, value) for place, value in refused if validators[place].is_valid(value)]
    excused = [UNTOLD.keys() & {*fields(value, place)} for place, value in taken]
    assert [each for each, why in zip(taken, excused, strict=True) if not why] == []
    assert Counter(field for why in excused for field in why) == UNTOLD


def test_no_value_that_an_api_server_takes_is_refused(validators: dict[str, Any]) -> None:
    taken = [(place, value) for place, value, legal in kept() if legal and place not in NARROWER]
    assert len(taken) > 4000
    assert [each for each in taken if not validators[each[0]].is_valid(each[1])] == []
