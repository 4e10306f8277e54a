"""A mixture, packed rows and dropped samples on real ranks: after kill -9, other ranks go on, and each counts once."""

import json
from collections import Counter
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from accounts import tallied
from mixtures import DROPPING, LENGTHS, PACKED_ROW, ROWS, SIZES, WEIGHTS, packed
from own_scripts import SCRIPTS, started, verified

KILLED = 137


def run(folder: Path, world: int, dies: int = 0) -> CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIES_IN", str(dies))
        return started(SCRIPTS / "mixed_counted.py", str(folder), world=world)


@pytest.mark.nightly
def test_other_ranks_go_on_and_each_sample_and_token_counts_as_planned(tmp_path: Path) -> None:
    log = ""
    for world, dies in ((2, 11), (2, 22), (3, 14), (1, 0)):
        ended = run(tmp_path, world, dies)
        assert ended.returncode == (KILLED if dies else 0), ended.stderr
        log += ended.stdout
    times = json.loads((tmp_path / "times-0.json").read_text())

    drawn, first = {}, 0
    for name, size in SIZES.items():
        own = times["mixture"][first : first + size]
        drawn[name] = sum(own)
        assert abs(drawn[name] - ROWS * WEIGHTS[name]) < 1
        assert set(own) <= {drawn[name] // size, -(-drawn[name] // size)}
        first += size
    assert times["dropping"] == [2 * (index % 3 != 0) for index in range(DROPPING)]
    *tokens, padding = times["packed"]
    assert tokens == [2] * sum(LENGTHS)
    assert padding == 2 * (len(packed()) * PACKED_ROW - sum(LENGTHS))

    judged = verified(log)
    assert "✓ the proof holds" in judged
    for text in (log, judged):
        assert f"  few: {drawn['few']} rows by its weight 7/10, each of its 50 samples 2 or 3 times\n" in text
        assert f"  tiny: {drawn['tiny']} rows by its weight 1/10, each of its 8 samples 2 or 3 times\n" in text
        assert text.count("✓ 21 dropped by the program, every other sample exactly once") == 2
    assert "; dropped by the program: 42 samples of dropping" in judged
    phases = Counter(line["phase"] for line in tallied(log) if line.get("rank") == "all" and line["phase"] != "all")
    assert phases == {"mixture": 1, "dropping": 2, "packed": 2}
    together = next(line for line in tallied(log) if line.get("rank") == "all" and line["phase"] == "mixture")
    weights = {"few": 7, "many": 2, "tiny": 1}
    assert together["mixture"] == {name: [weights[name], SIZES[name], drawn[name]] for name in SIZES}
    assert together["expected"] == together["consumed"] == ROWS
    false = log.replace(f'"tiny":[1,8,{drawn["tiny"]}]', '"tiny":[1,8,19]')
    with pytest.raises(AssertionError, match=f"had 19 rows of the source tiny, but its weight 1 makes {drawn['tiny']}"):
        verified(false)
