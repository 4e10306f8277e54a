"""A job of the chart has what the hand-written PyTorchJob had, by the table of the page that migrates it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

PAGE = (Path(__file__).parents[2] / "docs/guides/own-image.md").read_text()
TABLE = PAGE.partition("## Migrate a PyTorchJob")[2].partition("\n\n`torchtally local")[0]

SAME = """
env: [{name: LOGLEVEL, value: info}]
envFrom: [{secretRef: {name: bucket}}]
volumeMounts: [{name: corpus, mountPath: /corpus}]
"""
OF_THE_POD = """
volumes: [{name: corpus, persistentVolumeClaim: {claimName: corpus}}]
nodeSelector: {pool: gpu}
tolerations: [{key: gpu, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
  {matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}}
"""
OF_THE_RUN = "{cleanPodPolicy: Running, ttlSecondsAfterFinished: 60, activeDeadlineSeconds: 3600, backoffLimit: 3}"


def test_each_part_of_a_hand_written_job_has_its_value(render: Callable[..., list[Object]], tmp_path: Path) -> None:
    container, pod, run = (yaml.safe_load(text) for text in (SAME, OF_THE_POD, OF_THE_RUN))
    renamed = {
        "task": "",
        "args": ["run", "--", "python", "main.py"],
        "image": {"repository": "registry.example/mine", "tag": "v1", "pullSecrets": [{"name": "registry"}]},
        "serviceAccount": {"create": False, "name": "trainer"},
        "shmSize": "2Gi",
    }
    (file := tmp_path / "values.yaml").write_text(yaml.safe_dump({**container, **pod, **run, **renamed}))
    [job] = [each for each in render(f"--values={file}") if each["kind"] == "PyTorchJob"]

    assert run.items() <= job["spec"]["runPolicy"].items()
    assert job["spec"]["pytorchReplicaSpecs"].keys() == {"Master", "Worker"}
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        template = replica["template"]
        assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
        [main] = template["spec"]["containers"]
        assert (main["image"], main["args"]) == ("registry.example/mine:v1", renamed["args"])
        for name, value in container.items():
            assert [each for each in value if each not in main[name]] == []
        memory = next(each["name"] for each in main["volumeMounts"] if each["mountPath"] == "/dev/shm")
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        assert volumes[memory]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
        assert volumes["corpus"] == pod["volumes"][0]
        assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert template["spec"]["serviceAccountName"] == "trainer"
        assert {name: template["spec"][name] for name in pod if name != "volumes"} == {
            name: value for name, value in pod.items() if name != "volumes"
        }
    named = set(re.findall(r"`(\w+)`", TABLE))
    assert {*container, *pod} - named == set()
    assert {"image.pullSecrets", "serviceAccount.name", "runPolicy", "shmSize"} <= set(re.findall(r"`([\w.]+)`", TABLE))
