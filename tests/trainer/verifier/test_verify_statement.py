"""A proof in place of logs: the same verdict, and no proof that is cut, forged, or of another model."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bruteforce
import jsonschema
import pytest
import stated
from stated import Forge, change, forged, statement, written

from torchtally.checkpoints.manifest import File, Manifest
from torchtally.commands import jobs, verify
from torchtally.proof import statement as statements

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs/reference/statement-v1.schema.json").read_text())
LINES = bruteforce.run()
TOGETHER = [line for line in LINES if line["rank"] == "all"]
LAST = bruteforce.last(LINES)
PROOF = statement(LINES)


def dropped(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
    return shard[:1] if (phase, rank) == ("train", 2) else []


def swapped(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
    return shard[1:] if rank == 1 else shard


WORLDS = [(1, 0, 2), (1, 22, 4), (2, 0, 3)]  # a restart within the first epoch, and one after it
RESUMED = bruteforce.run(worlds=WORLDS)
DISPROVED = bruteforce.run(consume=swapped)
RUNS = {
    "healthy": (LINES, LAST),
    "resumed": (RESUMED, bruteforce.last(RESUMED, WORLDS)),
    "dropped": (bruteforce.run(drops=dropped), None),
    "disproved": (DISPROVED, bruteforce.last(DISPROVED)),
    "of an own loop": (LINES, bruteforce.last(LINES, model=None)),
    # A pod that was lost printed no line.
    "incomplete, but for its last line": ([line for line in LINES if line["rank"] != 3], LAST),
    "contradictory": ([*LINES[:-1], {**LINES[-1], "seed": 7}], LAST),
    # Rank 0 keeps those of its own start, as far as there is room.
    "of all ranks together alone": (TOGETHER, LAST),
}


Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Calls the verifier. Returns its exit code and what it prints."""
    return lambda *arguments: (verify.main([str(each) for each in arguments]), *capsys.readouterr())


def test_the_schema_of_the_documentation_is_the_classes() -> None:
    """`make docs` writes it."""
    assert statements.schema() == SCHEMA


@pytest.mark.parametrize("name", RUNS)
def test_the_verdict_is_that_of_the_logs(name: str, tmp_path: Path, said: Said) -> None:
    lines, last = RUNS[name]
    last = last or bruteforce.last(lines)
    found = statement(lines, last, model=(last["model"] or bruteforce.MODEL)[7:])
    jsonschema.validate(found, SCHEMA)
    (tmp_path / "demo.log").write_text(bruteforce.text([*lines, last]))
    of_logs = said(tmp_path / "demo.log")
    assert of_logs[0] == (1 if name in ("disproved", "contradictory") else 0)
    assert ("; the run's last line is proof enough" in of_logs[1]) == (lines == TOGETHER or "but for" in name)
    for indent in (1, None):
        proof = written(tmp_path / "proof.json", found, indent)
        assert said(proof) == of_logs


def replaced(**values: Any) -> Forge:
    return lambda found: found["predicate"].update(values)


def both(*forges: Forge) -> Forge:
    """Forge, and make the lines' hash fit."""

    def forge(found: dict[str, Any]) -> None:
        for each in forges:
            each(found)
        stated.rehash(found)

    return forge


def without(*numbers: int) -> Forge:
    def forge(found: dict[str, Any]) -> None:
        lines = found["predicate"]["lines"]
        found["predicate"]["lines"] = [line for at, line in enumerate(lines) if at - len(lines) not in numbers]

    return forge


def moved(found: dict[str, Any]) -> None:
    lines = found["predicate"]["lines"]
    lines.insert(0, lines.pop())


OTHER = bruteforce.text([{**LAST, "run": "0123456789ab"}]).strip()
FORGED = {
    "a changed line": (change(0, '"consumed":', '"consumed":1'), "the lines are not those that were written"),
    "a changed line and hash": (
        both(change(-2, '"consumed":', '"consumed":1')),
        "all ranks together consumed 110, but",
    ),
    "a garbled line and hash": (both(change(3, '"lost":0', '"lost":"no"')), 'line 4: bad tally line: "lost" is "no"'),
    "no last line, and its hash": (both(without(-1)), "the run's last line is missing: the last one of 20 lines is"),
    "the last line elsewhere": (both(moved), "the run's last line is missing"),
    "the last line of another run": (
        both(lambda found: found["predicate"]["lines"].__setitem__(-1, OTHER)),
        "the statement is of run 3f9c2a7b10de, and it has lines of run 0123456789ab",
    ),
    "another run": (replaced(run="0123456789ab"), "is of run 0123456789ab, and it has lines of run 3f9c2a7b10de"),
    "another task": (replaced(task="mnist-cnn"), "is of task mnist-cnn, and the last line of fashion-mnist"),
    "other data": (replaced(data={"train": "sha256:ffff"}), "names the data {'train': 'sha256:ffff'}"),
    "another model": (
        lambda found: found["subject"][0]["digest"].update(sha256="f" * 64),
        f"the last line is of the model {bruteforce.MODEL}, and the statement is of model.pt (sha256:ffff",
    ),
    "the model as a checkpoint": (replaced(checkpoint="model.pt"), "and the statement is of no file"),
    "a failure that is not in the lines": (replaced(holds=False), "the statement says that the proof does not hold"),
    "a line twice": (
        both(lambda found: found["predicate"]["lines"].insert(0, found["predicate"]["lines"][0].replace("ter-0", "x"))),
        "is printed twice and differs: pod",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_proof_is_disproved_with_the_reason(name: str, tmp_path: Path, said: Said) -> None:
    forge, reason = FORGED[name]
    proof = written(tmp_path / "proof.json", forged(PROOF, forge))
    status, out, _ = said(proof)
    assert status == 1, out
    assert reason in out and "✗ disproved" in out
    assert json.loads(said(proof, "--json")[1])["outcome"] == "disproved"


TWIN = '"holds": true,'
UNREADABLE = {
    "cut off": (lambda text: text[: len(text) // 2], "it is cut off or damaged: Unterminated string"),
    "another version": (lambda text: text.replace("statement-v1", "statement-v2"), "it is a proof of version 2, and"),
    "of another kind": (lambda text: text.replace(stated.PREDICATE, "https://slsa.dev/provenance/v1"), "predicateType"),
    "of another statement": (lambda text: text.replace("Statement/v1", "Statement/v2"), '"_type" is "https://in-toto'),
    "a field twice": (lambda text: text.replace(TWIN, f"{TWIN} {TWIN}"), 'an object has the field "holds" twice'),
    "a field of a line twice": (
        lambda text: text.replace(r"\"lost\":0", r"\"lost\":3,\"lost\":0"),
        'line 1 is damaged: an object has the field "lost" twice',
    ),
    "no number": (lambda text: text.replace('"holds": true', '"holds": NaN'), "NaN is no number of JSON"),
    "a missing field": (lambda text: text.replace(TWIN, ""), '"predicate.holds" is missing'),
    "a wrong type": (
        lambda text: text.replace(TWIN, '"holds": 1,'),
        '"predicate.holds" is 1, allowed is true or false',
    ),
    "no subject": (lambda text: text.replace('"subject": [', '"subject": [], "was": ['), '"subject" is []'),
    "a line of a newer release": (
        lambda text: json.dumps(forged(PROOF, both(change(0, '"v":2', '"v":3')))),
        "version 3 of the line is not known here",
    ),
    "another line": (lambda text: text.replace("TORCHTALLY {", "TALLY {"), "line 1 is no tally line"),
    "signed": (lambda text: '{"dsseEnvelope": {}}', "it is signed: scripts/proof.sh verify checks the signature"),
    "no text": (lambda text: text.replace("demo-master-0", "demo-\udcff"), "it is not text in UTF-8"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_bad_input(name: str, tmp_path: Path, said: Said) -> None:
    damage, reason = UNREADABLE[name]
    proof = tmp_path / "proof.json"
    proof.write_text(damage(json.dumps(PROOF, indent=1)), errors="surrogateescape")
    status, out, err = said(proof)
    assert (status, out) == (2, "")
    assert err.startswith(f"torchtally verify: cannot read the proof {proof}: ") and reason in err


@pytest.mark.parametrize("indent", [1, None])
def test_no_part_of_a_proof_proves_anything(indent: int | None, tmp_path: Path, said: Said) -> None:
    text = json.dumps(PROOF, indent=indent)
    for length in range(0, len(text) - 1, len(text) // 40):
        (tmp_path / "proof.json").write_text(text[:length])
        assert said(tmp_path / "proof.json")[0] in (2, 3), length
    for number in range(len(PROOF["predicate"]["lines"])):
        proof = written(tmp_path / "proof.json", forged(PROOF, without(-1 - number)), indent)
        assert said(proof)[0] == 1, number


def test_the_model_must_be_that_of_the_proof(tmp_path: Path, said: Said) -> None:
    model, other = tmp_path / "weights.pt", tmp_path / "other.pt"
    model.write_bytes(b"the weights")
    other.write_bytes(b"others")
    proof = written(tmp_path / "proof.json", statement(LINES, model=hashlib.sha256(b"the weights").hexdigest()))
    status, out, _ = said(proof, "--model", model)
    assert status == 0 and f"note: {model} is the model.pt of the proof" in out
    status, out, _ = said(proof, "--model", model, "--model", other)
    assert status == 1
    assert f"✗ {other} has sha256:{hashlib.sha256(b'others').hexdigest()}, and the proof is of model.pt (sha256:" in out
    status, _, err = said(proof, "--model", tmp_path / "none.pt")
    assert status == 2 and f"--model {tmp_path / 'none.pt'} cannot be read: {tmp_path / 'none.pt'}: No such file" in err
    (tmp_path / "demo.log").write_text(bruteforce.text([*LINES, LAST]))
    status, _, err = said(tmp_path / "demo.log", "--model", model)
    assert status == 2 and "--model goes with a proof" in err


def test_a_checkpoint_that_is_a_folder_is_compared_with_all_its_files(tmp_path: Path, said: Said) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "shard").write_bytes(b"weights")
    place = {"run": "3f9c2a7b10de", "attempt": 0, "epoch": 3, "position": 0, "consumed": 74, "discarded": 0, "world": 4}
    versions = {"torchtally": "0.1.0", "torch": "2.14.1", "objects": {}, "account": {}}
    files = {"shard": File(7, hashlib.sha256(b"weights").hexdigest())}
    printed = Manifest(**place, **versions, files=files).printed()
    (folder / "manifest.json").write_bytes(printed)
    checkpoint = {"name": "checkpoint/manifest.json", "digest": {"sha256": hashlib.sha256(printed).hexdigest()}}
    found = forged(PROOF, replaced(checkpoint="checkpoint/manifest.json"))
    found["subject"].append(checkpoint)
    proof = written(tmp_path / "proof.json", found)
    status, out, _ = said(proof, "--model", folder)
    assert status == 0 and f"note: {folder}/manifest.json is the checkpoint/manifest.json of the proof" in out
    (folder / "shard").write_bytes(b"others!")
    status, out, _ = said(proof, "--model", folder)
    assert status == 1 and "shard has another SHA-256 than its manifest says" in out
    (folder / "shard").unlink()
    assert "shard is missing" in said(proof, "--model", folder)[1]


def event(kind: str, rank: int | None = 0, attempt: int = 0, began: int = LAST["began"], **fields: object) -> str:
    values = {"v": 1, "event": kind, "time": 2e9 + attempt, "pod": "demo-master-0", "rank": rank}
    of_run = {"run": bruteforce.RUN, "attempt": attempt, "began": began}
    values |= {**(dict.fromkeys(of_run) if rank is None else of_run), **fields}
    return f"TORCHTALLY-EVENT {json.dumps(values, separators=(',', ':'))}\n"


ENDED = event("ended", None, code=0)


def test_a_proof_completes_the_rotated_logs_of_its_run(tmp_path: Path, said: Said) -> None:
    proof, log = written(tmp_path / "proof.json", PROOF), tmp_path / "demo.log"
    log.write_text(event("proved") + bruteforce.text(LINES[-1:]) + ENDED)
    status, out, _ = said(log)
    assert status == 3 and "note: rotated: the log begins in the middle, and the earlier lines are gone (pod " in out
    for paths in ((log, proof), (proof, log), (tmp_path,)):
        status, out, _ = said(*paths)
        assert status == 0 and "note: rotated: " in out
    log.write_text(event("progress") + ENDED)  # which names the run at least
    assert said(tmp_path)[0] == 0


def test_a_whole_log_is_not_called_rotated(tmp_path: Path, said: Said) -> None:
    begins = event("started", None), event("begun") + event("step"), event("complete", None), event("progress")
    for begin in begins:  # `progress` comes first in the log of another pod than rank 0's, without an entry point
        (tmp_path / "demo.log").write_text(begin + bruteforce.text([*LINES, LAST]) + event("complete"))
        status, out, _ = said(tmp_path)
        assert status == 0 and "rotated" not in out


def test_a_proof_that_is_not_of_the_run_in_the_logs_is_not_used(tmp_path: Path, said: Said) -> None:
    proof, log = written(tmp_path / "proof.json", PROOF), tmp_path / "demo.log"
    another = bruteforce.text(LINES[-1:]).replace(bruteforce.RUN, "another")
    began = LAST["began"]
    for text, reason in (
        (another, f"it is of run {bruteforce.RUN}, of which the logs have no line"),
        (ENDED, f"it is of run {bruteforce.RUN}, of which the logs have no line"),
        (event("progress", 0, 1, began + 1), f"it is of attempt 0 of run {bruteforce.RUN}, and attempt 1 came later"),
        (event("progress", 0, 0, began + 1), "it is of attempt 0 of 2"),
    ):
        log.write_text(text)
        status, out, _ = said(tmp_path)
        assert status == (1 if text is another else 3) and f"note: the proof {proof} is not used: {reason}" in out
    log.write_text(event("progress"))
    (tmp_path / "model.pt").write_bytes(b"of a later start")
    status, out, _ = said(tmp_path)
    assert status == 3 and f"is not used: {tmp_path / 'model.pt'} has changed since" in out
    (tmp_path / "model.pt").unlink()
    proof.write_bytes(proof.read_bytes()[:-9])
    status, out, _ = said(tmp_path)
    assert status == 3 and "is not used: it is cut off or damaged" in out
    written(proof, forged(PROOF, replaced(run="another")))
    log.write_text(event("progress") + another)
    status, out, _ = said(tmp_path)
    assert status == 1 and f"✗ {proof}: the statement is of run another" in out


def test_a_proof_that_contradicts_the_logs_disproves_them(tmp_path: Path, said: Said) -> None:
    written(tmp_path / "proof.json", statement(DISPROVED))
    (tmp_path / "demo.log").write_text(bruteforce.text([*LINES, LAST]))
    assert said(tmp_path)[0] == 1


def test_a_proof_is_no_log(tmp_path: Path, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    proof = written(tmp_path / "proof.json", PROOF)
    assert said(tmp_path)[0] == 3
    for command in ("status", "report"):
        page = [str(tmp_path / "page.html")] * (command == "report")
        assert jobs.main([command, str(proof), *page]) == 2
        assert f"{proof} is a proof and no log, which only `torchtally verify` takes" in capsys.readouterr().err


def test_options_of_the_verifier(tmp_path: Path, said: Said) -> None:
    proof = written(tmp_path / "proof.json", PROOF)
    assert said(proof, "--run", "3f9c2a7b10de")[0] == 0
    status, _, err = said(proof, "--run", "other")
    assert status == 2 and "no tally line of run other; found: 3f9c2a7b10de (21 lines)" in err
    status, out, _ = said(proof, "--expect-per-pod", "1")
    assert status == 1 and "but --expect-per-pod is 1" in out
    long = bruteforce.Local((20, 10, 7))
    lines = bruteforce.run(local=long, contract="padded")
    for line in lines:
        line.pop("sizes", None)
    last = bruteforce.last(lines)
    proof = written(tmp_path / "proof.json", statement(lines, last))
    assert said(proof)[0] == 3
    (tmp_path / "sizes.json").write_text(json.dumps(long.sizes))
    assert said(proof, "--sizes", tmp_path / "sizes.json")[0] == 0
