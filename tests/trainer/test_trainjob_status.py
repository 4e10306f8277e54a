"""What Kubeflow Trainer is told of a training: by HTTPS to a server like its own, and what comes of one that fails."""

import datetime
import http.server
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from launched import ENTRY, LIMIT, until

from torchtally.environment import StatusServer
from torchtally.monitoring import trainjob_status
from torchtally.monitoring.trainjob_status import Reporter

HERE = Path(__file__).parent
EVERY = 0.4  # seconds between two reports of a training that is to be watched for some
START = f"from torchtally.monitoring import trainjob_status; trainjob_status._INTERVAL = {EVERY}; {ENTRY}"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.first"
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/demo/trainjobs/digits/status"
COMPLAINT = "torchtally: Kubeflow Trainer at 127.0.0.1 does not accept the training's progress: "


class Certificates:
    """A CA and a certificate of 127.0.0.1, with the usages that Trainer's own have."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.ca, self.chain = folder / "ca.crt", folder / "tls.pem"
        ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        ca = self._signed("kubeflow-trainer-ca", ca_key, None, ca_key)
        own = self._signed("127.0.0.1", key, ca, ca_key)
        self.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.chain.write_bytes(private + own.public_bytes(serialization.Encoding.PEM))

    def _signed(self, name: str, key: Any, issuer: x509.Certificate | None, issuers_key: Any) -> x509.Certificate:
        is_ca, now = issuer is None, datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        usages = dict.fromkeys(
            ("content_commitment", "data_encipherment", "key_agreement", "crl_sign", "encipher_only", "decipher_only"),
            False,
        )
        unsigned = (
            x509.CertificateBuilder(issuer_name=issuer.subject if issuer else subject, subject_name=subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(digital_signature=True, key_encipherment=True, key_cert_sign=is_ca, **usages), True
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuers_key.public_key()), False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )
        if not is_ca:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))])
            unsigned = unsigned.add_extension(names, False)
        return unsigned.sign(issuers_key, hashes.SHA256())


class Trainer(http.server.ThreadingHTTPServer):
    """Takes reports as Trainer's status server does, or answers each with the `code` of a refusal."""

    daemon_threads = True

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.code = 200
        self.silent = False
        self.times: list[float] = []
        self.requests: list[tuple[str, Any]] = []  # method, headers
        self.reports: list[dict[str, Any]] = []
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificates.chain)

    def finish_request(self, request: Any, client_address: Any) -> None:  # in the request's own thread
        if self.silent:
            while request.recv(1 << 12):  # until the client has had enough
                pass
            return
        with self._context.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # of a client that does not trust the certificate

    @property
    def percentages(self) -> list[int]:
        return [report["progressPercentage"] for report in self.reports]

    @property
    def tokens(self) -> list[str]:
        return [headers["Authorization"] for _, headers in self.requests]


class Answer(http.server.BaseHTTPRequestHandler):
    server: Trainer

    def do_POST(self) -> None:
        self.server.times.append(time.monotonic())
        self.server.requests.append((f"POST {self.path}", self.headers))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.code == 200:
            assert set(body) == {"trainerStatus"}
            self.server.reports.append(body["trainerStatus"])
        self.send_response(self.server.code, f"with a reason that tells {TOKEN}")
        if self.server.code == 302:
            self.send_header("Location", f"https://127.0.0.1:{self.server.server_address[1]}/elsewhere")
        self.end_headers()
        self.wfile.write(json.dumps({"message": f"told {TOKEN}"}).encode())

    def do_GET(self) -> None:
        self.server.requests.append((f"GET {self.path}", self.headers))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "trusted")


@pytest.fixture
def trainer(certificates: Certificates) -> Iterator[Trainer]:
    with Trainer(certificates) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def hanging() -> Iterator[int]:
    """The port of one that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def environment(fashion_mnist: Path, tmp_path: Path, token: Path, certificates: Certificates) -> dict[str, str]:
    """A trainer pod's; the proxy is there to be passed by."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_", "TORCH"))}
    return {
        **kept,
        **{"OMP_NUM_THREADS": "1", "PET_NPROC_PER_NODE": "2", "TORCHTALLY_DEVICE": "cpu"},
        "TORCHTALLY_DATA": str(fashion_mnist),
        "TORCHTALLY_OUTPUT": str(tmp_path / "output"),
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificates.ca),
        "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
        "HTTPS_PROXY": "http://127.0.0.1:1",
    }


def url(port: int) -> dict[str, str]:
    return {"KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{port}{PATH}"}


def command(epochs: int, *program: str) -> list[str]:
    quick = ["fashion-mnist", "--epochs", str(epochs), "--batch-size", "250", "--hidden", "16"]
    return [sys.executable, "-c", START, "run", *program, *quick]


def ended(environment: dict[str, str], *arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, timeout=LIMIT, cwd=HERE)


def metrics(report: dict[str, Any]) -> dict[str, str]:
    """By name, each as the CustomResourceDefinition wants it."""
    for each in report["metrics"]:
        assert set(each) == {"name", "value"}
        assert all(isinstance(text, str) and 1 <= len(text) <= 64 for text in each.values())
    found = {each["name"]: each["value"] for each in report["metrics"]}
    assert len(found) == len(report["metrics"]) <= 256
    return found


def test_a_training_is_reported_from_its_beginning_to_its_end(environment: dict[str, str], trainer: Trainer) -> None:
    done = ended({**environment, **url(trainer.server_address[1])}, 2)
    assert done.returncode == 0, done.stderr
    assert "progress" not in done.stderr
    assert {line for line, _ in trainer.requests} == {f"POST {PATH}"}
    assert set(trainer.tokens) == {f"Bearer {TOKEN}"}
    assert {headers["Content-Type"] for _, headers in trainer.requests} == {"application/json"}
    first, *_, last = trainer.reports
    assert (first["progressPercentage"], "estimatedRemainingSeconds" in first) == (0, False)
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    assert trainer.percentages == sorted(trainer.percentages)
    assert 100 not in trainer.percentages[:-1]
    seen = datetime.datetime.strptime(last["lastUpdatedTime"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.UTC)
    assert abs(datetime.datetime.now(datetime.UTC) - seen).total_seconds() < LIMIT
    found = metrics(last)
    assert 0 < float(found["train_loss"]) < 5
    assert 0 < float(found["epoch_loss"]) < 5
    assert 0.05 < float(found["test_accuracy"]) < 1
    assert float(found["samples_per_second"]) > 0
    assert {name: found[name] for name in found if name.startswith(("proofs", "samples_lost", "samples_doubled"))} == {
        **{"proofs_held": "4", "proofs_failed": "0"},
        **{"samples_lost": "0", "samples_doubled": "0"},
    }


@contextmanager
def running(environment: dict[str, str], epochs: int) -> Iterator[None]:
    process = subprocess.Popen(command(epochs), env=environment)
    try:
        yield
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(LIMIT)
    assert code == 128 + signal.SIGTERM


def test_a_run_that_is_taken_up_again_goes_on_from_where_it_stood(
    environment: dict[str, str], trainer: Trainer, token: Path
) -> None:
    environment |= url(trainer.server_address[1])
    with running(environment, 100):
        until("1 % is done", lambda: trainer.percentages[-1:] >= [1])
        stepped = [report for report in trainer.reports if "train_loss" in metrics(report)]
        assert stepped
        assert all(report["estimatedRemainingSeconds"] > 0 for report in stepped)
        times = trainer.times[:]
        assert all(after - before > 0.9 * EVERY for before, after in pairwise(times))
        token.write_text("second")
        count = len(trainer.reports)
        until("another report", lambda: len(trainer.reports) > count + 1)  # one may have been under way
    stopped, count = trainer.reports[-1], len(trainer.reports)
    assert 1 <= stopped["progressPercentage"] < 100
    assert "estimatedRemainingSeconds" not in stopped
    assert trainer.tokens[0] == f"Bearer {TOKEN}"
    assert trainer.tokens[-1] == "Bearer second"
    with running(environment, 100):
        until("it has stepped again", lambda: "estimatedRemainingSeconds" in trainer.reports[-1])
        assert trainer.percentages == sorted(trainer.percentages)
        assert trainer.percentages[count] == stopped["progressPercentage"]
        assert "estimatedRemainingSeconds" not in trainer.reports[count]
        assert trainer.reports[-1]["estimatedRemainingSeconds"] > 0
        proofs = [int(metrics(report)["proofs_held"]) for report in trainer.reports]
        assert proofs == sorted(proofs)
        assert proofs[count] == int(metrics(stopped)["proofs_held"]) >= 2


def test_a_proof_that_ends_the_run_is_told(environment: dict[str, str], trainer: Trainer) -> None:
    environment |= url(trainer.server_address[1])
    done = ended(environment, 1, "--", sys.executable, "faulty.py", "rank_local_shuffle")
    assert done.returncode == 3, done.stderr
    last = trainer.reports[-1]
    assert last["progressPercentage"] == 99
    assert "estimatedRemainingSeconds" not in last
    found = metrics(last)
    assert (found["proofs_held"], found["proofs_failed"]) == ("0", "1")
    assert int(found["samples_lost"]) == int(found["samples_doubled"]) > 10_000


@pytest.mark.parametrize("library", ["lightning", "accelerate", "trainer"])
def test_a_librarys_training_with_an_account_is_reported(
    environment: dict[str, str], trainer: Trainer, library: str
) -> None:
    environment |= {"HF_HUB_OFFLINE": "1", **url(trainer.server_address[1])}
    script = [sys.executable, "-c", ENTRY, "run", "--", sys.executable, f"scripts/{library}_tallied.py"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=LIMIT, cwd=HERE)
    assert done.returncode == 0, done.stderr
    first, *_, last = trainer.reports
    assert (first["progressPercentage"], last["progressPercentage"]) == (0, 100)
    found = metrics(last)
    assert (found["proofs_held"], found["proofs_failed"], found["samples_lost"]) == ("2", "0", "0")
    assert float(found["samples_per_second"]) > 0
    assert ("train_loss" in found) == (library != "accelerate")  # whose loop is the user's own


@pytest.mark.parametrize("trouble", ["refuses", "is another", "hangs", "is away"])
def test_a_server_that_does_not_take_it_costs_a_sentence(
    environment: dict[str, str], trainer: Trainer, hanging: int, trouble: str, tmp_path: Path
) -> None:
    environment |= url(trainer.server_address[1])
    trainer.code = 403
    why = "it answers 403 Forbidden"
    if trouble == "is another":
        environment["KUBEFLOW_TRAINER_SERVER_CA_CERT"] = str(Certificates(tmp_path / "other").ca)
        why = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"
    elif trouble == "hangs":
        environment |= url(hanging)
        why = ""  # whichever of its limits comes first
    elif trouble == "is away":
        environment |= url(1)
        why = "[Errno 111] Connection refused"
    done = ended(environment, 1)
    assert done.returncode == 0, done.stderr
    assert "✓ every sample exactly once" in done.stdout
    assert done.stderr.count(COMPLAINT + why) == done.stderr.count("progress") == 1
    assert "Traceback" not in done.stderr
    assert TOKEN not in done.stderr + done.stdout
    assert trainer.reports == []
    assert trouble == "refuses" or trainer.requests == []


def test_an_address_without_a_token_is_refused(environment: dict[str, str]) -> None:
    del environment["KUBEFLOW_TRAINER_SERVER_TOKEN"]
    done = ended({**environment, **url(1)}, 1)
    assert done.returncode == 2
    assert (
        "reports to Kubeflow Trainer need KUBEFLOW_TRAINER_SERVER_TOKEN besides KUBEFLOW_TRAINER_SERVER_URL"
        in done.stderr
    )


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainjob_status, "_INTERVAL", 0.05)


@pytest.fixture
def begun(token: Path, certificates: Certificates) -> Iterator[Callable[[int], Reporter]]:
    """Begins a training of which half is done, with a failed proof behind it."""
    started: list[Reporter] = []

    def begin(port: int) -> Reporter:
        server = StatusServer(host="127.0.0.1", port=port, path=PATH, ca=certificates.ca, token=token)
        started.append(Reporter(server))
        started[0].begin(50, 0.5, [{"phase": "train", "lost": 3, "doubled": 1}])
        return started[0]

    yield begin
    started[0].end(False)


def test_what_a_state_becomes(often: None, begun: Callable[[int], Reporter], trainer: Trainer) -> None:
    begins = time.monotonic()
    training = begun(trainer.server_address[1])
    until("it is told", lambda: trainer.reports)
    assert trainer.reports[0]["progressPercentage"] == 50
    assert metrics(trainer.reports[0]) == {
        **{"proofs_held": "0", "proofs_failed": "1"},
        **{"samples_lost": "3", "samples_doubled": "1"},
    }
    time.sleep(1)  # a training's own time
    training.step(1, 10, 0.6)
    training.metrics(1, train_loss=1 / 3, test_loss=float("nan"))
    training.proof({"phase": "test", "lost": 0, "doubled": 0}, True)
    training.proof({"phase": "train", "lost": 0, "doubled": 0}, False)  # only a rank's own line is wrong
    training.proof({"phase": "train", "lost": None, "doubled": 2}, False)
    until("it is told", lambda: metrics(trainer.reports[-1])["proofs_failed"] == "3")
    assert trainer.percentages[-1] == 60
    # A tenth in a second and a bit, so the other four take four times as long.
    assert 4 <= trainer.reports[-1]["estimatedRemainingSeconds"] <= 4 * (time.monotonic() - begins) + 1
    assert metrics(trainer.reports[-1]) == {
        **{"train_loss": "0.333333", "test_loss": "nan", "proofs_held": "1", "proofs_failed": "3"},
        **{"samples_lost": "many", "samples_doubled": "3"},
    }
    training.step(1, 10, 1.0)
    until("it is told", lambda: trainer.percentages[-1] == 99)
    training.end(True)
    assert trainer.percentages[-1] == 100


@pytest.mark.parametrize("code", [302, 403, 500])
def test_a_refusal_is_said_once_and_followed_nowhere(
    often: None, begun: Callable[[int], Reporter], trainer: Trainer, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer.code = code
    training = begun(trainer.server_address[1])
    until("it has tried thrice", lambda: len(trainer.requests) >= 3)
    trainer.code = 200
    until("it is told", lambda: trainer.reports)
    training.end(True)
    assert trainer.percentages[-1] == 100
    assert {line for line, _ in trainer.requests} == {f"POST {PATH}"}
    said = capfd.readouterr().err
    assert said.startswith(f"{COMPLAINT}it answers {code} ")
    assert said.count("\n") == 1
    assert TOKEN not in said


@pytest.mark.parametrize("content", [f"{TOKEN}\nmore", f"{TOKEN}é…", None])
def test_what_is_no_token_is_not_told(
    begun: Callable[[int], Reporter],
    trainer: Trainer,
    token: Path,
    content: str | None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    token.unlink()
    if content is not None:
        token.write_text(content)
    begun(trainer.server_address[1]).end(True)
    said = capfd.readouterr().err
    assert said.count(COMPLAINT) == said.count("\n") == 1
    assert str(token) in said
    assert TOKEN not in said
    assert trainer.requests == []


def test_nobody_waits_for_a_server_that_hangs(
    begun: Callable[[int], Reporter], hanging: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainjob_status, "_REQUEST_TIMEOUT", 60)
    training = begun(hanging)
    begins = time.monotonic()
    for step in range(100_000):
        training.step(1, 10, 0.5 + step / 200_000)
        training.metrics(step, train_loss=1.0)
    assert time.monotonic() - begins < trainjob_status._REQUEST_TIMEOUT / 2
    begins = time.monotonic()
    training.end(True)
    assert time.monotonic() - begins < trainjob_status._REQUEST_TIMEOUT / 2
    assert capfd.readouterr().err.count(COMPLAINT) == 1


def test_a_server_that_hung_is_told_later(
    often: None,
    begun: Callable[[int], Reporter],
    trainer: Trainer,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainjob_status, "_REQUEST_TIMEOUT", 0.5)
    trainer.silent = True
    training = begun(trainer.server_address[1])
    said = ""

    def complained() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return COMPLAINT in said

    until("it complains", complained)
    trainer.silent = False
    until("it is told", lambda: trainer.reports)
    training.end(True)
    assert "timed out" in said


def test_a_server_slower_than_all_patience_is_named_before_the_end(
    begun: Callable[[int], Reporter], hanging: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainjob_status, "_END_TIMEOUT", 0.1)
    begun(hanging).end(True)
    assert capfd.readouterr().err == f"{COMPLAINT}no answer; the training continues, and later reports are tried\n"
