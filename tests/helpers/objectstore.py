"""A server of S3 on this machine, and a proxy before it that fails as networks and full servers do."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from ranks import free_port

_LIMIT = 120  # seconds

_FULL = b"<Error><Code>XMinioStorageFull</Code><Message>the drive is full</Message></Error>"  # MinIO's own code


@dataclass(frozen=True)
class Store:
    """A bucket of a server on this machine, and a user who may use it."""

    port: int
    key: str
    secret: str
    bucket: str = ""

    def environment(self, port: int | None = None, secret: str | None = None) -> dict[str, str]:
        """How boto finds the server, perhaps through a proxy: docs/guides/checkpoints.md."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": secret or self.secret,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "2",
        }

    def client(self, service: str = "s3") -> Any:
        """A client of boto."""
        return boto3.client(
            service,
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )

    def url(self, path: str) -> str:
        return f"s3://{self.bucket}/{path}"


@contextmanager
def server(folder: Path) -> Iterator[Store]:
    """Run a server without a bucket: moto, or MinIO where TEST_S3 says so."""
    with _minio(folder) if os.environ.get("TEST_S3") == "minio" else _moto() as store:
        yield store


@contextmanager
def _moto() -> Iterator[Store]:
    """moto, which checks signatures after its first three requests: they make the user."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": "3"}, port, "moto-api"):
        iam = Store(port, "nobody", "nothing").client("iam")
        iam.create_user(UserName="torchtally")
        may = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}
        iam.put_user_policy(UserName="torchtally", PolicyName="s3", PolicyDocument=json.dumps(may))
        made = iam.create_access_key(UserName="torchtally")["AccessKey"]
        yield Store(port, made["AccessKeyId"], made["SecretAccessKey"])


@contextmanager
def _minio(folder: Path) -> Iterator[Store]:
    """MinIO as `tools/install.py minio` builds it."""
    store = Store(free_port(), "torchtally", "a secret of this test")
    tools = os.environ.get("TOOLS_DIR") or Path(__file__).parents[2] / ".tools/bin"
    environment = {
        "HOME": str(folder),
        "MINIO_BROWSER": "off",
        "MINIO_CI_CD": "1",  # the folder may be on the root disk
        "MINIO_ROOT_USER": store.key,
        "MINIO_ROOT_PASSWORD": store.secret,
        "MINIO_UPDATE": "off",
    }
    command = [f"{tools}/minio", "server", "--quiet", "--address", f"127.0.0.1:{store.port}", str(folder)]
    with _running(command, environment, store.port, "minio/health/ready"):
        yield store


@contextmanager
def _running(command: list[str], environment: dict[str, str], port: int, ready: str) -> Iterator[None]:
    """Run a server, from when it answers."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + _LIMIT
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{ready}", timeout=5):
                        break
                except OSError:
                    assert process.poll() is None, f"the server has ended with {process.returncode}"
                    assert time.monotonic() < until, f"the server was not ready within {_LIMIT} s"
                    time.sleep(0.1)
            yield
        finally:
            process.kill()


class Proxy:
    """Passes on what it receives, or fails as the file `mode` says.

    `passing`; `held` waits for another mode; `away` closes all connections; `full` answers writes as a full server.
    """

    def __init__(self, target: int, mode: Path, port: int):
        self._target, self._mode = target, mode
        mode.write_text("passing")
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        _shut(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink, source is client), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                while (mode := self._mode.read_text()) == "held":
                    time.sleep(0.05)
                if mode == "away":
                    break
                if mode == "full" and asks and data.startswith((b"PUT ", b"POST ")):
                    head = (
                        b"HTTP/1.1 507 Insufficient Storage\r\nConnection: close\r\nContent-Type: application/xml\r\n"
                    )
                    source.sendall(head + b"Content-Length: %d\r\n\r\n%s" % (len(_FULL), _FULL))
                    break
                sink.sendall(data)
        _shut(source), _shut(sink)


@contextmanager
def proxy(target: int, mode: Path, port: int = 0) -> Iterator[Proxy]:
    with closing(Proxy(target, mode, port)) as made:
        yield made


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
