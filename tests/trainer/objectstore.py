"""MinIO, a real S3 server, on this machine, and a proxy before it that fails as networks and full servers do."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ranks import free_port

KEY, SECRET = "torchtally", "a secret of this test"
BUCKET = "checkpoints"
_LIMIT = 120  # seconds

_FULL = b"<Error><Code>XMinioStorageFull</Code><Message>the drive is full</Message></Error>"  # MinIO's own code


def program() -> str | None:
    """MinIO as `scripts/tools.py minio` installs it."""
    tools = os.environ.get("TOOLS_DIR") or Path(__file__).parents[2] / ".tools/bin"
    return shutil.which("minio", path=f"{tools}{os.pathsep}{os.environ.get('PATH', '')}")


@contextmanager
def server(folder: Path) -> Iterator[int]:
    """Run MinIO with an empty bucket; yields its port."""
    (folder / BUCKET).mkdir(parents=True)
    port, path = free_port(), program()
    assert path
    environment = {
        "HOME": str(folder),
        "MINIO_BROWSER": "off",
        "MINIO_CI_CD": "1",  # the folder may be on the root disk
        "MINIO_ROOT_USER": KEY,
        "MINIO_ROOT_PASSWORD": SECRET,
        "MINIO_UPDATE": "off",
    }
    command = [path, "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + _LIMIT
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/minio/health/ready", timeout=5):
                        break
                except OSError:
                    assert process.poll() is None, f"MinIO has ended with {process.returncode}"
                    assert time.monotonic() < until, f"MinIO was not ready within {_LIMIT} s"
                    time.sleep(0.1)
            yield port
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


def environment(port: int, secret: str = SECRET) -> dict[str, str]:
    """How boto finds the server: docs/guides/checkpoints.md."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "2",
    }


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
