"""The proof of a program's own run, as a statement about its own files."""

import hashlib
import json
import os
from pathlib import Path

import accounts
import jsonschema
import proofs
from called import verified
from squares import Squares

from torchtally import Account

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs/reference/statement-v1.schema.json").read_text())


def loop(folder: Path, *files: str) -> None:
    with Account(task="own", plan={"train": 2}, seed=7) as account:
        source = account.loader(Squares(9), "train", batch_size=2)
        for epoch in account.epochs():
            for _ in account.epoch("train", epoch, source):
                account.commit()
        if account.rank == 0:
            (folder / "model.pt").write_bytes(b"the weights")
    for path in ("proof.json", "deeper/proof.json"):
        account.write_proof(folder / path, *(folder / file for file in files))


def test_the_proof_of_an_own_loop_is_of_the_files_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/manifest.json").write_text("{}")
    found = accounts.run(3, loop, tmp_path, "model.pt", "checkpoint")
    assert [each["code"] for each in found] == [0] * 3, found[0]["err"]
    assert list(proofs.read(tmp_path / "deeper/proof.json").subjects) == ["model.pt", "manifest.json"]
    proof = tmp_path / "proof.json"
    jsonschema.validate(json.loads(proof.read_bytes()), SCHEMA)
    assert proofs.read(proof).subjects == {
        "model.pt": hashlib.sha256(b"the weights").hexdigest(),
        "checkpoint/manifest.json": hashlib.sha256(b"{}").hexdigest(),
    }
    log = "".join(each["out"] for each in found)
    judged, archived = verified("-", log=log), verified(proof)
    assert (archived.returncode, archived.stdout) == (0, judged.stdout)
    assert verified(proof, "--model", tmp_path / "model.pt").returncode == 0
    (tmp_path / "model.pt").write_bytes(b"others")
    other = verified(proof, "--model", tmp_path / "model.pt")
    assert other.returncode == 1 and "and the proof is of model.pt (sha256:" in other.stdout


def early(folder: Path) -> None:
    with Account(task="own", plan={"train": 1}) as account:
        (folder / "model.pt").write_bytes(b"")
        account.write_proof(folder / "proof.json", folder / "model.pt")


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for files, reason in (
        ([], "write_proof() must have at least one file of the model"),
        (["none.pt"], f"write_proof() cannot read {tmp_path / 'none.pt'}: No such file"),
        (["folder"], f"write_proof() cannot read {tmp_path / 'folder/manifest.json'}: No such file"),
    ):
        ended = accounts.alone(loop, tmp_path, *files)
        assert ended["code"] == 2 and reason in ended["err"]
    ended = accounts.alone(early, tmp_path)
    assert ended["code"] == 2 and "must come after the end of the account's `with` statement" in ended["err"]
    assert not (tmp_path / "proof.json").exists()


def quiet(folder: Path, runs: int) -> None:
    os.environ["TORCHTALLY_OUTPUT"] = str(folder)
    for number in range(runs):
        with Account(f"fold {number}", epochs=1) as account:
            for _ in account.epoch("train", 1, account.loader(Squares(9), batch_size=2)):
                account.commit()


def test_a_run_that_names_no_file_leaves_its_proof_beside_its_record(tmp_path: Path) -> None:
    found = accounts.run(2, quiet, tmp_path, 2)
    assert [each["code"] for each in found] == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "run-2.json", "proof.json", "proof-2.json"}
    for name in ("", "-2"):
        proof, record = tmp_path / f"proof{name}.json", tmp_path / f"run{name}.json"
        assert proofs.read(proof).subjects == {record.name: hashlib.sha256(record.read_bytes()).hexdigest()}
        assert proofs.read(proof).predicate.run == json.loads(record.read_bytes())["run"]
        assert verified(proof).returncode == 0
        jsonschema.validate(json.loads(proof.read_bytes()), SCHEMA)


def kept(file: Path) -> None:
    os.environ["TORCHTALLY_TERMINATION_LOG"] = str(file)
    quiet(file.parent / "output", 9)


def test_the_termination_message_keeps_whole_last_lines(tmp_path: Path) -> None:
    (tmp_path / "message").touch()
    ended = accounts.alone(kept, tmp_path / "message")
    last = [line for line in ended["out"].splitlines() if '"worlds":' in line]
    lines = (tmp_path / "message").read_text().splitlines()
    assert len(last) == 9 and lines == last[: len(lines)] and 1 < len(lines) < 9
