"""Rank 0's progress reports to Kubeflow Trainer, which shows them in the TrainJob's status.trainerStatus.

A thread sends them, so that the training does not wait for Trainer. A failure causes a warning.
"""

import json
import math
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPException, HTTPSConnection, responses
from itertools import islice
from typing import Any

from torchtally.environment import StatusServer
from torchtally.log import log
from torchtally.monitoring.callback import Callback
from torchtally.proof import table

_INTERVAL = 5.0  # seconds between two reports
_REQUEST_TIMEOUT = 3.0  # seconds for each part of a request; less than _END_TIMEOUT, which includes a pending request
_END_TIMEOUT = 5.0  # seconds for the last report, because the grace period of a pod is short
_LONGEST, _MOST = 64, 200  # characters of a name, and metrics of the program's own; the fields' maxima are 64 and 256
_MAX_SECONDS = (1 << 31) - 1  # the field's maximum


@contextmanager
def reporter(server: StatusServer) -> Iterator["Reporter"]:
    """Report the progress of the training in the `with` block, which is complete if the block ends without error."""
    reporter = Reporter(server)
    complete = False
    try:
        yield reporter
        complete = True
    finally:
        reporter.end(complete)


class Reporter(Callback):
    """The state of a training, and the thread that reports it. They share objects that are replaced, never changed."""

    def __init__(self, server: StatusServer) -> None:
        self._server = server
        self._began = 0.0  # when this attempt began
        self._done_before = self._done = 0.0  # completed share of the training, before this attempt and now
        self._values: dict[str, float] = {}
        self._proofs: list[tuple[Mapping[str, Any], bool]] = []
        self._complete = self._warned = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, step: int, done: float, lines: Sequence[Mapping[str, Any]]) -> None:
        self._began, self._done_before, self._done = time.monotonic(), done, done
        self._proofs = [(line, not table.wrong(line)) for line in lines]
        # The first report is the status before the first step.
        self._thread = threading.Thread(target=self._report, args=[self._status(last=False)], daemon=True)
        self._thread.start()

    def step(self, epoch: int, samples: int, done: float) -> None:
        self._done = done

    def metrics(self, step: int, **values: float) -> None:
        known = {**self._values, **{name: value for name, value in values.items() if len(name) <= _LONGEST}}
        self._values = dict(islice(known.items(), _MOST))

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        self._proofs = [*self._proofs, (line, holds)]

    def end(self, complete: bool) -> None:
        """Send the last report. Waits up to _END_TIMEOUT seconds."""
        self._complete = complete
        self._ended.set()
        if self._thread:
            self._thread.join(_END_TIMEOUT)
            if self._thread.is_alive():
                self._warn_once("no answer")  # from this thread: one that prints while Python exits can abort it

    def _report(self, status: Mapping[str, Any]) -> None:
        last = False
        while True:
            try:
                _send(self._server, status)
            except (OSError, HTTPException) as error:
                self._warn_once(str(error) or type(error).__name__)
            except ValueError:  # its text can contain the token
                self._warn_once(f"no request can be made with the token in {self._server.token}")
            if last:
                return
            last = self._ended.wait(_INTERVAL)
            status = self._status(last)

    def _status(self, last: bool) -> dict[str, Any]:
        proofs, done = self._proofs, self._done
        held = sum(holds for _, holds in proofs)
        values = {name: f"{value:.6g}" for name, value in self._values.items()}
        values |= {"proofs_held": str(held), "proofs_failed": str(len(proofs) - held)}
        for how in ("lost", "doubled"):
            counts = [line[how] for line, _ in proofs]
            values[f"samples_{how}"] = table.shown(None if None in counts else sum(counts))
        status = {
            "progressPercentage": 100 if self._complete else min(int(100 * done), 99),
            "metrics": [{"name": name, "value": value} for name, value in values.items()],
            "lastUpdatedTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if self._complete:
            status["estimatedRemainingSeconds"] = 0
        elif done > self._done_before and not last:  # a stopped training has no estimate
            seconds = (time.monotonic() - self._began) * (1 - done) / (done - self._done_before)
            status["estimatedRemainingSeconds"] = min(math.ceil(seconds), _MAX_SECONDS)
        return status

    def _warn_once(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            warning = f"Kubeflow Trainer at {self._server.host} does not accept the training's progress: {reason}"
            log.warning(f"{warning}; the training continues, and later reports are tried")


def _send(server: StatusServer, status: Mapping[str, Any]) -> None:
    """Send a report. Raises OSError, HTTPException, and ValueError for an invalid token."""
    # The kubelet renews both files, so each report reads them. urllib would send the token to proxies and redirections.
    context = ssl.create_default_context(cafile=server.ca)
    headers = {"Authorization": f"Bearer {server.token.read_text().strip()}", "Content-Type": "application/json"}
    with closing(HTTPSConnection(server.host, server.port, timeout=_REQUEST_TIMEOUT, context=context)) as connection:
        connection.request("POST", server.path, json.dumps({"trainerStatus": status}), headers)
        code = connection.getresponse().status
    if not 200 <= code < 300:
        raise HTTPException(f"it answers {code} {responses.get(code, '')}".strip())
