"""Shard files in an object store: MinIO, a real S3 server, and before it a proxy that fails."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import objectstore
import pytest
from shardfiles import WRITERS
from test_own_scripts import reported
from test_streams_killed import N, run, survives

from torchtally import events

pytest.importorskip("s3fs", reason="the extra s3 is not installed")
pytestmark = pytest.mark.skipif(
    objectstore.program() is None, reason="MinIO is not there: `scripts/tools.py minio` builds it with Go"
)
LIMIT = 120  # seconds
LIMITS = {"mds": 2500, "tars": 50_000, "tokens": 1000}  # bytes of copies: a few shards

READ = """
import json, sys
from shardfiles import number, of_kind
from torchtally.errors import Ending
kind, where, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
try:
    dataset = of_kind(kind, where, **options)
    print(len(dataset), dataset[50] is not None)
except Ending as ending:
    print(ending.code, ending)
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server that has all kinds of files, below a folder of the kind's name."""
    folder = tmp_path_factory.mktemp("minio")
    with objectstore.server(folder) as port:
        put(port, tmp_path_factory.mktemp("data"))
        yield port


def put(port: int, data: Path) -> None:
    import s3fs

    store = objectstore.environment(port)
    fs = s3fs.S3FileSystem(
        key=objectstore.KEY, secret=objectstore.SECRET, endpoint_url=store["AWS_ENDPOINT_URL"], skip_instance_cache=True
    )
    for kind, write in WRITERS.items():
        write(data / kind, N)
        fs.put(str(data / kind), f"{objectstore.BUCKET}/{kind}", recursive=True)


def environment(patch: pytest.MonkeyPatch, port: int, secret: str = objectstore.SECRET) -> None:
    for name, value in objectstore.environment(port, secret).items():
        patch.setenv(name, value)


def url(kind: str) -> str:
    return f"s3://{objectstore.BUCKET}/{kind}"


def options(kind: str, folder: Path) -> dict[str, Any]:
    return {} if kind == "parquet" else {"local": str(folder / "copies"), "cache_limit": LIMITS[kind]}


def read(kind: str, folder: Path, where: str = "") -> str:
    """What a process of its own says, whose library has no connection yet."""
    ended = subprocess.run(
        [sys.executable, "-c", READ, kind, where or url(kind), json.dumps(options(kind, folder))],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("kind", WRITERS)
def test_a_store_is_read_and_one_that_is_away_or_refuses_is_a_sentence(
    kind: str, port: int, tmp_path: Path, monkeypatch: Any
) -> None:
    with objectstore.proxy(port, tmp_path / "mode") as proxy:
        environment(monkeypatch, proxy.port)
        assert read(kind, tmp_path) == f"{N} True\n"
        (tmp_path / "mode").write_text("away")
        away = read(kind, tmp_path / "anew")
    assert away.startswith("202 s3://checkpoints/") and away.count("\n") == 1, away
    assert " cannot be read: " in away
    environment(monkeypatch, port, "the wrong secret")
    denied = read(kind, tmp_path / "anew")
    assert denied.startswith("2 s3://checkpoints/") and denied.count("\n") == 1, denied
    environment(monkeypatch, port)
    missing = read(kind, tmp_path / "anew", "s3://checkpoints/elsewhere")
    assert missing.startswith("2 ") and missing.count("\n") == 1, missing


@pytest.mark.nightly
@pytest.mark.parametrize("kind", WRITERS)
def test_other_ranks_go_on_and_each_sample_counts_once(kind: str, port: int, tmp_path: Path, monkeypatch: Any) -> None:
    environment(monkeypatch, port)
    survives(tmp_path, kind, url(kind), 1, 2, **options(kind, tmp_path))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["mds", "parquet"])
def test_a_store_that_goes_away_in_an_epoch_ends_the_run(
    kind: str, port: int, tmp_path: Path, monkeypatch: Any
) -> None:
    """The copies of MDS have a limit, so that shards must be fetched again."""
    environment(monkeypatch, port)
    with objectstore.proxy(port, tmp_path / "mode") as proxy:
        environment(monkeypatch, proxy.port)
        monkeypatch.setenv("AWAY", str(tmp_path / "mode"))
        began = time.monotonic()
        ended = run(tmp_path, kind, url(kind), 2, open_shards=1, **options(kind, tmp_path))
    assert time.monotonic() - began < 2 * LIMIT
    assert ended.returncode == 202, ended.stderr
    assert "Traceback" not in ended.stderr
    last = reported(ended.stderr)[-1]
    assert isinstance(last, events.Ended) and "cannot be read" in str(last.cause)
