"""Shard files in an object store, and before it a proxy that fails."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import objectstore
import pytest
from own_scripts import reported
from shardfiles import WRITERS
from test_streams_killed import N, run, survives

from torchtally import events

LIMIT = 400  # seconds
LIMITS = {"mds": 2500, "tars": 50_000, "tokens": 1000}  # bytes of copies: a few shards

# One process reads all kinds in each situation: the environment's variables, where the files are, and the proxy's mode.
READ = """
import json, os, sys
from pathlib import Path
import s3fs
from shardfiles import WRITERS, of_kind
from torchtally.errors import Ending
mode, situations, options, found = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]), {}
for name, (environment, where, to) in situations.items():
    os.environ.update(environment)
    mode.write_text(to)
    for kind in WRITERS:
        s3fs.S3FileSystem.clear_instance_cache()
        local = {"local": f"copies/{name}"} if "local" in options[kind] else {}
        try:
            dataset = of_kind(kind, where + kind, **options[kind] | local)
            found[f"{kind} {name}"] = f"{len(dataset)} {dataset[50] is not None}"
        except Ending as ending:
            found[f"{kind} {name}"] = f"{ending.code} {ending}"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def shards(store_server: objectstore.Store, tmp_path_factory: pytest.TempPathFactory) -> objectstore.Store:
    """A bucket that has all kinds of files, below a folder of the kind's name."""
    store, data, client = replace(store_server, bucket="shards"), tmp_path_factory.mktemp("data"), store_server.client()
    client.create_bucket(Bucket=store.bucket)
    for kind, write in WRITERS.items():
        write(data / kind, N)
    for file in (each for each in data.rglob("*") if each.is_file()):
        client.upload_file(str(file), store.bucket, file.relative_to(data).as_posix())
    return store


def environment(patch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        patch.setenv(name, value)


def options_of(kind: str, folder: Path) -> dict[str, Any]:
    return {} if kind == "parquet" else {"local": str(folder / "copies"), "cache_limit": LIMITS[kind]}


@pytest.fixture(scope="module")
def said(shards: objectstore.Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each kind says in each situation."""
    folder = tmp_path_factory.mktemp("said")
    with objectstore.proxy(shards.port, folder / "mode") as proxy:
        good, wrong = (shards.environment(proxy.port, secret) for secret in (None, "the wrong one"))
        situations = {
            "there": (good, shards.url(""), "passing"),
            "away": (good, shards.url(""), "away"),
            "denied": (wrong, shards.url(""), "passing"),
            "missing": (good, "s3://elsewhere/", "passing"),
        }
        options = {kind: options_of(kind, folder) for kind in WRITERS}
        ended = subprocess.run(
            [sys.executable, "-c", READ, str(folder / "mode"), json.dumps(situations), json.dumps(options)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "helpers")},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", WRITERS)
def test_a_store_is_read_and_one_that_is_away_or_refuses_is_a_sentence(kind: str, said: dict[str, str]) -> None:
    assert said[f"{kind} there"] == f"{N} True"
    for situation, beginning in (("away", "202 s3://shards/"), ("denied", "2 s3://shards"), ("missing", "2 ")):
        sentence = said[f"{kind} {situation}"]
        assert sentence.startswith(beginning) and "\n" not in sentence, sentence
    assert " cannot be read: " in said[f"{kind} away"]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", WRITERS)
def test_other_ranks_go_on_and_each_sample_counts_once(
    kind: str, shards: objectstore.Store, tmp_path: Path, monkeypatch: Any
) -> None:
    environment(monkeypatch, shards.environment())
    survives(tmp_path, kind, shards.url(kind), 1, 2, **options_of(kind, tmp_path))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["mds", "parquet"])
def test_a_store_that_goes_away_in_an_epoch_ends_the_run(
    kind: str, shards: objectstore.Store, tmp_path: Path, monkeypatch: Any
) -> None:
    """The copies of MDS have a limit, so that shards must be fetched again."""
    environment(monkeypatch, shards.environment())
    with objectstore.proxy(shards.port, tmp_path / "mode") as proxy:
        environment(monkeypatch, shards.environment(proxy.port))
        monkeypatch.setenv("AWAY", str(tmp_path / "mode"))
        ended = run(tmp_path, kind, shards.url(kind), 2, open_shards=1, **options_of(kind, tmp_path))
    assert ended.returncode == 202, ended.stderr
    assert "Traceback" not in ended.stderr
    last = reported(ended.stderr)[-1]
    assert isinstance(last, events.Ended) and "cannot be read" in str(last.cause)
