"""scripts/proof.sh with a real cosign: who has signed a proof, and what is refused; with ORAS, and a real registry."""

import base64
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bruteforce
import pytest
import stated
from stated import change, forged, statement, written

ROOT = Path(__file__).parents[2]
TOOLS = os.environ.get("TOOLS_DIR") or str(ROOT / ".tools/bin")
PATH = f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}"
ENVIRONMENT = {**os.environ, "PATH": PATH, "PYTHON": sys.executable, "COSIGN_PASSWORD": "not a secret"}
LIMIT = 300  # seconds


def needs(program: str) -> pytest.MarkDecorator:
    missing = not shutil.which(program, path=PATH)
    return pytest.mark.skipif(missing, reason=f"{program} is not there: `tools/install.py {program}` installs it")


pytestmark = needs("cosign")
LINES = bruteforce.run()
MODEL = b"the weights"
PROOF = statement(LINES, model=hashlib.sha256(MODEL).hexdigest())


def key_pair(folder: Path) -> dict[str, str]:
    folder.mkdir()
    command = ["cosign", "generate-key-pair"]
    subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, timeout=LIMIT)
    return {"COSIGN_KEY": str(folder / "cosign.key"), "COSIGN_PUB": str(folder / "cosign.pub")}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Ours, and those of others."""
    folder = tmp_path_factory.mktemp("keys")
    return [key_pair(folder / name) for name in ("ours", "others")]


def proof_sh(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts/proof.sh"), *map(str, arguments)]
    ended = subprocess.run(command, env=ENVIRONMENT | environment, capture_output=True, text=True, timeout=LIMIT)
    assert "Traceback" not in ended.stderr
    return ended


@pytest.fixture(scope="module")
def signature(keys: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The proof, signed, which is costly."""
    folder = tmp_path_factory.mktemp("signed")
    (folder / "model.pt").write_bytes(MODEL)
    ended = proof_sh(keys[0], "sign", written(folder / "proof.json", PROOF), folder / "model.pt")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == str(folder / "proof.sigstore.json")
    return (folder / "proof.sigstore.json").read_bytes()


@pytest.fixture
def signed(signature: bytes, tmp_path: Path) -> Path:
    """The signed proof, beside its model and without the one that is in it."""
    (tmp_path / "model.pt").write_bytes(MODEL)
    path = tmp_path / "proof.sigstore.json"
    path.write_bytes(signature)
    return path


def refused(ended: subprocess.CompletedProcess[str], status: int, reason: str) -> None:
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert reason in ended.stdout + ended.stderr


def test_a_signed_proof_is_verified_by_its_key_alone(keys: list[dict[str, str]], signed: Path, tmp_path: Path) -> None:
    ours, others = keys
    ended = proof_sh(ours, "verify", signed, tmp_path / "model.pt")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"note: {tmp_path / 'model.pt'} is the model.pt of the proof" in ended.stdout
    assert "✓ the proof holds: run 3f9c2a7b10de, 4 ranks" in ended.stdout
    refused(proof_sh(others, "verify", signed), 1, f"{signed} is not signed by {others['COSIGN_PUB']}: ")
    (tmp_path / "other.pt").write_bytes(b"others")
    refused(proof_sh(ours, "verify", signed, tmp_path / "other.pt"), 1, "and the proof is of model.pt (sha256:")


def in_envelope(forge: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    """Change the proof in a bundle, with its hash, and leave the signature."""

    def change_(bundle: dict[str, Any]) -> None:
        proof = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        forge(proof)
        stated.rehash(proof)
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(proof).encode()).decode()

    return change_


def as_legacy(bundle: dict[str, Any]) -> None:
    """The signed envelope in another format, in which cosign would find it, beside one that is not signed."""
    envelope = dict(bundle["dsseEnvelope"])
    bundle["base64Signature"] = base64.b64encode(json.dumps(envelope).encode()).decode()
    in_envelope(lambda proof: proof["subject"][0].update(name="mine.pt"))(bundle)
    bundle["mediaType"] = "application/json"


FORGED = {
    "a line": in_envelope(change(0, "demo-master-0", "demo-master-1")),
    "the model": in_envelope(lambda proof: proof["subject"][0]["digest"].update(sha256="f" * 64)),
    "the type": lambda bundle: bundle["dsseEnvelope"].update(payloadType="text/plain"),
    "another format": as_legacy,
}


@pytest.mark.parametrize("name", FORGED)
def test_what_was_changed_after_it_was_signed_is_refused(
    name: str, keys: list[dict[str, str]], signed: Path, tmp_path: Path
) -> None:
    other = written(tmp_path / "forged.json", forged(json.loads(signed.read_text()), FORGED[name]), None)
    refused(proof_sh(keys[0], "verify", other), 1, f"{other} is not signed by {keys[0]['COSIGN_PUB']}: ")


def test_a_signature_on_something_else_is_no_proof(keys: list[dict[str, str]], tmp_path: Path) -> None:
    """cosign signs any statement of one's own."""
    ours = keys[0]
    made = {
        "predicate of another kind": forged(PROOF, lambda proof: proof.update(predicateType="https://example.com/x")),
        "contradiction": forged(PROOF, lambda proof: proof["predicate"]["lines"].pop(0)),
    }
    reasons = {
        "predicate of another kind": "invalid predicate type",
        "contradiction": "the lines are not those that were written",
    }
    for name, document in made.items():
        path, bundle = written(tmp_path / "any.json", document), tmp_path / "any.sigstore.json"
        options = ["--use-signing-config=false", "--tlog-upload=false", f"--key={ours['COSIGN_KEY']}", "--yes"]
        command = ["cosign", "attest-blob", *options, f"--statement={path}", f"--bundle={bundle}"]
        subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, timeout=LIMIT)
        refused(proof_sh(ours, "verify", bundle), 1, reasons[name])


def test_only_what_is_proved_is_signed(keys: list[dict[str, str]], tmp_path: Path) -> None:
    proof, signed = tmp_path / "proof.json", tmp_path / "proof.sigstore.json"
    written(proof, forged(PROOF, lambda found: found["predicate"]["lines"].pop(0)))
    refused(proof_sh(keys[0], "sign", proof), 1, "the lines are not those that were written")
    (tmp_path / "other.pt").write_bytes(b"others")
    refused(proof_sh(keys[0], "sign", written(proof, PROOF), tmp_path / "other.pt"), 1, "the proof is of model.pt")
    assert not signed.exists()


def test_mistakes(keys: list[dict[str, str]], signed: Path, tmp_path: Path) -> None:
    written(tmp_path / "proof.json", PROOF)
    cut = tmp_path / "cut.json"
    cut.write_bytes(signed.read_bytes()[:500])
    refused(proof_sh(keys[0], "verify", cut), 2, f"{cut} is no signed proof, as cosign writes it: ")
    refused(proof_sh(keys[0], "verify", tmp_path / "proof.json"), 2, "is no signed proof")
    refused(proof_sh(keys[0], "verify", tmp_path / "none.json"), 2, f"cannot read {tmp_path / 'none.json'}")
    refused(proof_sh({}, "sign", tmp_path / "proof.json"), 2, "COSIGN_KEY is not set")
    refused(proof_sh({}, "verify", signed), 2, "COSIGN_PUB is not set")
    refused(proof_sh({}, "check"), 2, "the first argument is 'check'; it must be sign, verify, push or pull")
    refused(proof_sh({}, "push", "localhost:1/model", signed), 2, "push needs REF")


@pytest.fixture
def registry() -> Iterator[str]:
    started = subprocess.run(
        ["docker", "run", "--detach", "--rm", "--publish", "127.0.0.1::5000", "registry:2"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if started.returncode:
        pytest.skip(f"registry:2 cannot be started: {started.stderr.strip()}")
    container = started.stdout.strip()
    try:
        port = subprocess.run(["docker", "port", container, "5000/tcp"], capture_output=True, text=True, check=True)
        address = f"localhost:{port.stdout.split(':')[-1].strip()}"
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/v2/", timeout=5):
                break
            time.sleep(0.1)
        yield address
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", container], capture_output=True, timeout=LIMIT)


@pytest.mark.nightly
@pytest.mark.engine
@needs("oras")
def test_a_registry_keeps_the_proof_beside_the_model(
    registry: str, keys: list[dict[str, str]], signed: Path, tmp_path: Path
) -> None:
    ours = keys[0]
    pushed = proof_sh({}, "push", f"{registry}/model:1", signed, tmp_path / "model.pt")
    assert pushed.returncode == 0, pushed.stderr
    reference = pushed.stdout.strip()
    assert reference.startswith(f"{registry}/model@sha256:")
    for number, ref in enumerate((reference, f"{registry}/model:1")):
        folder = tmp_path / f"pulled-{number}"
        pulled = proof_sh({}, "pull", ref, folder)
        assert pulled.returncode == 0, pulled.stderr
        assert pulled.stdout.strip() == f"{folder}/proof.sigstore.json"
        assert (folder / "model.pt").read_bytes() == MODEL
        assert proof_sh(ours, "verify", pulled.stdout.strip(), folder / "model.pt").returncode == 0
    refused(proof_sh({}, "pull", f"{registry}/none:1", tmp_path / "none"), 2, f"cannot read {registry}/none:1")
    plain = subprocess.run(
        ["oras", "push", "--plain-http", f"{registry}/other:1", "model.pt"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        timeout=LIMIT,
    )
    assert plain.returncode == 0
    refused(proof_sh({}, "pull", f"{registry}/other:1", tmp_path / "other"), 2, "must have one signed proof, and has 0")
