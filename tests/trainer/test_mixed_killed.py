"""A mixture, packed rows and dropped samples on real ranks: after kill -9, other ranks go on, and each counts once."""

import json
from collections import Counter
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from accounts import tallied
from mixtures import LENGTHS, PACKED_ROW, ROWS, SIZES, packed
from test_own_scripts import SCRIPTS, started, verified

KILLED = 137


def run(folder: Path, world: int, dies: int = 0) -> CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIES_IN", str(dies))
        return started(SCRIPTS / "mixed_counted.py", str(folder), world=world)


def test_other_ranks_go_on_and_each_sample_and_token_counts_as_planned(tmp_path: Path) -> None:
    log = ""
    for world, dies in ((2, 11), (3, 20), (1, 0)):
        ended = run(tmp_path, world, dies)
        assert ended.returncode == (KILLED if dies else 0), ended.stderr
        log += ended.stdout
    times = json.loads((tmp_path / "times-0.json").read_text())

    drawn = {"few": 142, "many": 41, "tiny": 20}  # of 203 rows, by their weights
    first = 0
    for name, size in SIZES.items():
        own = times["mixture"][first : first + size]
        assert sum(own) == drawn[name]
        assert set(own) <= {drawn[name] // size, -(-drawn[name] // size)}
        first += size
    *tokens, padding = times["packed"]
    assert tokens == [2] * sum(LENGTHS)
    assert padding == 2 * (len(packed()) * PACKED_ROW - sum(LENGTHS))

    judged = verified(log)
    assert "✓ the proof holds" in judged
    for text in (ended.stdout, judged):
        assert "  few: 142 rows by its weight 7/10, each of its 50 samples 2 or 3 times\n" in text or world == 1
    assert "  tiny: 20 rows by its weight 1/10, each of its 8 samples 2 or 3 times\n" in judged
    phases = Counter(line["phase"] for line in tallied(log) if line.get("rank") == "all" and line["phase"] != "all")
    assert phases == {"mixture": 1, "packed": 2}
    together = next(line for line in tallied(log) if line.get("rank") == "all" and line["phase"] == "mixture")
    assert together["mixture"] == {"few": [7, 50, 142], "many": [2, 200, 41], "tiny": [1, 8, 20]}
    assert together["expected"] == together["consumed"] == ROWS
    lost = log.replace('"tiny":[1,8,20]', '"tiny":[1,8,19]')
    assert lost != log
    with pytest.raises(AssertionError, match="19 rows of the source tiny, but its weight 1 makes 20"):
        verified(lost)
