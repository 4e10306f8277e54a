"""Lightning's example with its data in an object store: the changes that the guides tell, killed, and resumed."""

from dataclasses import replace
from pathlib import Path

import objectstore
import pyarrow
import pytest
from accounts import tallied
from own_scripts import ROOT, started, verified
from pyarrow import parquet

N = 1000
# In place of a dataset in memory: docs/guides/streams.md.
CHANGES = {
    "from torchtally import Account\n": (
        "from torchtally import Account, Locality\nfrom torchtally.streams.parquet import ParquetFiles\n"
    ),
    "account.loader(spirals(2000), batch_size=25, num_workers=1)": (
        'account.loader(ParquetFiles("s3://points/*.parquet"), batch_size=25, order=Locality(window=4, lanes=2))'
    ),
    "points, labels = batch\n": ('points, labels = torch.stack([batch["x"], batch["y"]], 1).float(), batch["label"]\n'),
}

pytestmark = pytest.mark.nightly  # by day, each of the two has its tests: test_integrations.py, test_streams_s3.py


@pytest.fixture
def points(store_server: objectstore.Store, tmp_path: Path) -> objectstore.Store:
    store = replace(store_server, bucket="points")
    store.client().create_bucket(Bucket=store.bucket)
    for number in range(4):
        rows = range(number * N // 4, (number + 1) * N // 4)
        values = {
            "x": [row / N for row in rows],
            "y": [row % 7 / 7 for row in rows],
            "label": [row % 2 for row in rows],
        }
        parquet.write_table(pyarrow.table(values), tmp_path / "points", row_group_size=50)
        store.client().upload_file(str(tmp_path / "points"), store.bucket, f"{number}.parquet")
    return store


def test_data_in_a_store_is_trained_once_in_each_epoch_through_a_kill(
    points: objectstore.Store, tmp_path: Path
) -> None:
    script = (ROOT / "examples/lightning_fit.py").read_text()
    for before, after in CHANGES.items():
        assert script.count(before) == 1
        script = script.replace(before, after)
    (path := tmp_path / "lightning_s3.py").write_text(script)
    variables = points.environment() | {"TORCHTALLY_OUTPUT": str(tmp_path), "WATCHED_NOTES": str(tmp_path / "notes")}
    starts = [
        started(
            ROOT / "bench/peers/watched.py",
            *(str(path), "--output", str(tmp_path / "checkpoints")),
            **(variables | {"WATCHED_DIES_IN": dies_in}),
        )
        for dies_in in ("30", "0")
    ]
    assert [each.returncode for each in starts] == [137, 0], starts[1].stderr
    assert "✓ the proof holds" in verified("".join(each.stdout for each in starts))
    last = tallied(starts[1].stdout)[-1]
    assert (last["attempt"], last["phases"]["train"]["consumed"]) == (1, 4 * N)
