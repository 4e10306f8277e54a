"""A manifest gains the observer, and stays as it was otherwise, to the byte."""

import difflib
import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import manifests
import pytest
import yaml
from hypothesis import given

from torchtally.commands import observe
from torchtally.inject import observer

ADDED = "PYTHONPATH", "torchtally-observer", "env:", "volumeMounts:", "volumes:", "configMap:", "readOnly: true"
Documents = list[dict[str, Any]]


def injected(text: str, *options: str) -> str:
    status, out, err = run(text, "inject", "-f", "-", *options)
    assert status == 0, err
    return out


def run(text: str | bytes, *arguments: str) -> tuple[int, str, str]:
    """The exit status of observe.py with this standard input, and what it prints."""
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text if isinstance(text, bytes) else text.encode())))
        status = observe.main(list(arguments))
    return status, out.buffer.getvalue().decode(), err.getvalue()  # type: ignore[attr-defined]


def parts(text: str) -> tuple[Documents, Documents]:
    """The ConfigMaps of the observer, and the other documents."""
    documents = [each for each in yaml.safe_load_all(text) if each is not None]
    own = [
        each for each in documents if each["kind"] == "ConfigMap" and each["metadata"]["name"].startswith(observer.NAME)
    ]
    return own, [each for each in documents if each not in own]


def bare(value: Any) -> Any:
    """A manifest without what it has gained, and without lists and objects that are empty."""
    if isinstance(value, dict):
        rest = {key: bare(each) for key, each in value.items()}
        return {key: each for key, each in rest.items() if each not in (None, [], {})}
    if isinstance(value, list):
        names = (observer.NAME, "torchtally.io/observer")
        kept = [
            each
            for each in value
            if not (isinstance(each, dict) and (each.get("name") or each.get("manager")) in names)
        ]
        return [each for each in map(bare, kept) if each != {"name": "PYTHONPATH"}]
    if isinstance(value, str) and observer.FOLDER in value:
        return value.removesuffix(observer.FOLDER).removesuffix(":") or None
    return value


@pytest.mark.parametrize("name", manifests.ALL)
def test_nothing_else_changes(name: str) -> None:
    before = manifests.ALL[name]
    after = injected(before)
    maps, documents = parts(after)
    _, own = parts(before)
    assert [bare(each) for each in documents] == [bare(each) for each in own]
    assert len(maps) == len(
        {each.get("metadata", {}).get("namespace") for each in own if each["kind"] in manifests.OBSERVED}
    )
    assert injected(after) == after

    status, again, err = run(after, "inject", "--remove", "-f", "-")
    assert status == 0, err
    assert parts(again) == ([], parts(again)[1]) and [bare(each) for each in parts(again)[1]] == list(map(bare, own))
    if name not in manifests.REWRITTEN:
        assert again.removeprefix("---\n") == before.removeprefix("---\n")


@pytest.mark.parametrize("name", manifests.IN_BLOCKS)
def test_lines_are_added_and_none_is_touched(name: str) -> None:
    before = manifests.ALL[name]
    changes = list(difflib.ndiff(before.splitlines(), injected(before).splitlines()))
    assert not [line for line in changes if line.startswith("- ")]


def test_what_the_containers_gain() -> None:
    (config_map,), (job, service) = parts(injected(manifests.ALL["a job of its own"]))
    assert config_map["immutable"] and config_map["metadata"]["namespace"] == "team-a"
    folder = Path(observer.SOURCE)
    assert config_map["data"] == {path.name: path.read_text() for path in folder.glob("*.py")}
    assert {"sitecustomize.py", "start.py"} <= set(config_map["data"]) and service["kind"] == "Service"
    replicas = job["spec"]["pytorchReplicaSpecs"]
    values = []
    for kind in ("Master", "Worker"):
        pod = replicas[kind]["template"]["spec"]
        assert {"name": "torchtally-observer", "configMap": {"name": config_map["metadata"]["name"]}} in pod["volumes"]
        (container,) = (each for each in pod["containers"] if each["name"] == "pytorch")
        mounts = {each["name"]: each for each in container["volumeMounts"]}
        assert mounts["torchtally-observer"]["mountPath"] == "/opt/torchtally-observer"
        values += [each["value"] for each in container["env"] if each["name"] == "PYTHONPATH"]
        assert not [each for each in pod["containers"] if each["name"] != "pytorch" and "volumeMounts" in each]
    assert values == ["/opt/torchtally-observer", "/src:/opt/torchtally-observer"]


def test_the_images_own_path_is_kept() -> None:
    text = manifests.ALL["a pod"]
    pod = parts(injected(text, "--pythonpath", "/lib:/app"))[1][0]
    assert pod["spec"]["containers"][0]["env"] == [
        {"name": "PYTHONPATH", "value": "/lib:/app:/opt/torchtally-observer"}
    ]
    assert (
        "if the image, or envFrom, sets PYTHONPATH, give that value by --pythonpath"
        in run(text, "inject", "-f", "-")[2]
    )


def test_an_older_observer_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = manifests.ALL["a job of its own"]
    new = injected(text)
    (tmp_path / "sitecustomize.py").write_text("# of before\n")
    monkeypatch.setattr(observer, "SOURCE", tmp_path)
    observer.files.cache_clear()
    try:
        old = injected(text)
        assert "# of before" in old and old != new
    finally:
        monkeypatch.undo()
        observer.files.cache_clear()
    assert injected(old) == new


def test_an_object_of_the_server_becomes_a_manifest() -> None:
    status, out, err = run(manifests.OF_THE_SERVER, "inject", "-f", "-")
    (job,) = parts(out)[1]
    assert status == 0 and "exists, and its pods do not change: `kubectl replace --force -f -` ends it" in err
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    assert job["metadata"] == {"annotations": {"team": "a"}, "name": "job", "namespace": "team-a"}
    (batch,) = parts(run(manifests.BATCH_OF_THE_SERVER, "inject", "-f", "-")[1])[1]
    assert "selector" not in batch["spec"] and batch["spec"]["template"]["metadata"]["labels"] == {"app": "train"}


def test_the_container_that_trains() -> None:
    text = manifests.pod("log-agent", "train")
    status, out, err = run(text, "inject", "-f", "-")
    assert (status, out) == (2, "") and "Pod p has containers log-agent, train: name the one that trains" in err
    containers = parts(injected(text, "--container", "train"))[1][0]["spec"]["containers"]
    assert ["volumeMounts" in each for each in containers] == [False, True]


@pytest.mark.parametrize(("text", "sentence"), manifests.BAD, ids=[sentence[:40] for _, sentence in manifests.BAD])
def test_what_cannot_be_observed_is_refused_in_a_sentence(text: str | bytes, sentence: str) -> None:
    for more in ([], ["--remove"]) if "--container" not in sentence and "list" not in sentence else ([],):
        status, out, err = run(text, "inject", "-f", "-", *more)
        if more and status == 0:  # what cannot be observed has nothing to remove
            continue
        assert (status, out) == (2, "")
        assert err.startswith("torchtally observe: standard input: ") and sentence in err and err.count("\n") == 1


def test_the_path_that_counts_is_extended() -> None:
    for name in ("a value that is an alias", "a value in a block of text"):
        (container,) = parts(injected(manifests.ALL[name]))[1][0]["spec"]["containers"]
        assert [each["value"] for each in container["env"]] == ["/hidden", "/src:/opt/torchtally-observer", "b"]
        assert container["image"] == "/src"


def test_jobs_beside_the_training_stay_as_they_are() -> None:
    text = manifests.ALL["a job of its own"] + "---\n" + manifests.pod("get", "proxy")
    status, out, err = run(text, "inject", "-f", "-")
    assert status == 0 and "Pod p stays as it is: name its container by --container to observe it" in err
    assert parts(out)[1][2] == parts(text)[1][2]
    assert "volumes" in parts(injected(text, "--container", "proxy", "--container", "pytorch"))[1][2]["spec"]
    assert run(text, "inject", "-f", "-", "--container", "none")[0] == 2


def test_text_of_other_programs_is_read() -> None:
    pod = yaml.safe_load(manifests.pod("a"))
    objects = "\n".join(json.dumps(each, indent="\t") for each in (pod, pod))  # jq --tab '.items[]'
    assert len(parts(injected(objects))[1]) == 2
    assert len(parts(injected("\ufeff" + manifests.pod("a")))[1]) == 1
    text = manifests.pod("a", container="    args:\n    - |\n      x") + "\n"
    last = text.replace("spec:", "spec:\n  volumes: []").rstrip() + "---\n".join(["\n", "kind: Other\na: |\n  b"])
    assert parts(injected(last))[1][1]["a"] == "b"  # no line end is added


def test_a_program_that_sets_the_path_is_named() -> None:
    text = manifests.pod("a", container='    command: [sh, -c, "PYTHONPATH=/x python train.py"]\n')
    assert "container a is not observed where `PYTHONPATH=/x` hides PYTHONPATH" in run(text, "inject", "-f", "-")[2]
    assert "warning" not in run(text.replace("=/x", "=/x:$PYTHONPATH"), "inject", "-f", "-")[2]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    status, out, err = run("", "inject", "-f", str(tmp_path / "none.yaml"))
    assert (status, out) == (2, "") and "none.yaml: cannot be read: No such file or directory" in err


def test_python_that_ignores_the_path_is_named() -> None:
    text = manifests.ALL["a pod"].replace(
        "image: x", "image: x\n    command: [bash, -c, 'exec python3 -u -I train.py']"
    )
    assert "container only is not observed: `python3 -u -I` ignores PYTHONPATH" in run(text, "inject", "-f", "-")[2]


def test_the_path_is_a_folder_with_a_sitecustomize() -> None:
    status, out, _ = run("", "path")
    assert status == 0 and (Path(out.strip()) / "sitecustomize.py").is_file()


NAMES = st.text("abc-\"'#: é", min_size=1, max_size=8)
TEXTS = st.one_of(NAMES, st.sampled_from(["a\nb\n", "---\n- x", "yes", "1:20", "", "null", "~", "x\n\n"]))
SCALARS = st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False))
VARIABLES = st.lists(st.fixed_dictionaries({"name": st.sampled_from(["A", "B"]), "value": TEXTS}), max_size=2)
PODS = st.fixed_dictionaries(
    {
        "containers": st.tuples(
            st.fixed_dictionaries(
                {"name": st.just("pytorch")},
                optional={"env": VARIABLES, "args": st.lists(TEXTS, max_size=2), "x": SCALARS},
            )
        ).map(list)
    },
    optional={
        "volumes": st.lists(st.fixed_dictionaries({"name": TEXTS}), max_size=2),
        "restartPolicy": TEXTS,
        "labels": st.dictionaries(TEXTS, SCALARS, max_size=2),
    },
)


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """An observer of one line, which is read quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observer, "files", lambda: {"sitecustomize.py": "pass\n"})
        yield


@pytest.mark.usefixtures("small")
@given(
    pods=st.dictionaries(st.sampled_from(["Master", "Worker"]), PODS, min_size=1),
    reverse=st.booleans(),
    style=st.sampled_from([False, None, True, "json"]),
    rest=st.lists(st.dictionaries(NAMES, SCALARS, min_size=1, max_size=2), max_size=2),
)
def test_any_manifest_keeps_its_meaning(pods: dict[str, Any], reverse: bool, style: Any, rest: Documents) -> None:
    replicas = {
        kind: {"template": {"spec": dict(reversed(pod.items())) if reverse else pod}} for kind, pod in pods.items()
    }
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "j"}}
    job |= {"spec": {"pytorchReplicaSpecs": replicas}}
    documents = [*({"kind": "Other", **each} for each in rest), job]
    if style == "json":
        text = "".join(f"---\n{json.dumps(each, indent=2)}\n" for each in documents)
    else:
        text = yaml.safe_dump_all(documents, default_flow_style=style, sort_keys=False, allow_unicode=True)
    after = injected(text)
    maps, found = parts(after)
    assert len(maps) == 1 and list(map(bare, found)) == list(map(bare, documents)) and injected(after) == after
    for pod in found[-1]["spec"]["pytorchReplicaSpecs"].values():
        (container,) = pod["template"]["spec"]["containers"]
        assert {"name": "PYTHONPATH", "value": "/opt/torchtally-observer"} in container["env"]
        assert len(container["volumeMounts"]) == 1 and pod["template"]["spec"]["volumes"][-1]["name"] == observer.NAME
    status, again, _ = run(after, "inject", "--remove", "-f", "-")
    assert status == 0 and list(map(bare, parts(again)[1])) == list(map(bare, documents))
