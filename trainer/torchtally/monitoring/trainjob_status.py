"""Rank 0's reports to Kubeflow Trainer of how far a training is, which it shows in its TrainJob's status.trainerStatus.

A thread sends them, so that nobody waits for Trainer; whatever it does with them costs a sentence.
"""

import json
import math
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPException, HTTPSConnection, responses
from typing import Any

from torchtally.accounting.tally import Phase
from torchtally.environment import StatusServer
from torchtally.monitoring.callback import Callback
from torchtally.proof import table

_EVERY = 5.0  # seconds between two reports
_TIMEOUT = 3.0  # seconds for each part of a request: less than _PATIENCE, which also waits for one under way
_PATIENCE = 5.0  # seconds for the last report: a pod that is stopped has more to do
_MOST = (1 << 31) - 1  # what the field holds


@contextmanager
def reported(server: StatusServer) -> Iterator["Progress"]:
    """The progress of what is done in the `with`, which is complete where that ends well."""
    progress = Progress(server)
    complete = False
    try:
        yield progress
        complete = True
    finally:
        progress.end(complete)


class Progress(Callback):
    """The latest state of a training, and the thread that reports it. What the two share is replaced, not changed."""

    def __init__(self, server: StatusServer) -> None:
        self._server = server
        self._began = self._before = self._done = 0.0  # when; and the share of the training done before that, and now
        self._values: dict[str, float] = {}
        self._proofs: list[tuple[Mapping[str, Any], bool]] = []
        self._complete = self._said = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, done: float, lines: Sequence[Mapping[str, Any]]) -> None:
        self._began, self._before, self._done = time.monotonic(), done, done
        self._proofs = [(line, not table.wrong(line)) for line in lines]
        # Its first report is of now, before the first step.
        self._thread = threading.Thread(target=self._report, args=[self._status(last=False)], daemon=True)
        self._thread.start()

    def step(self, phase: Phase, samples: int, done: float) -> None:
        self._done = done

    def metrics(self, step: int, **values: float) -> None:
        self._values = {**self._values, **values}

    def proof(self, line: Mapping[str, Any], holds: bool) -> None:
        self._proofs = [*self._proofs, (line, holds)]

    def end(self, complete: bool) -> None:
        """Report for the last time. Waits for that, but not for long."""
        self._complete = complete
        self._ended.set()
        if self._thread:
            self._thread.join(_PATIENCE)
            if self._thread.is_alive():
                self._say("no answer")  # here, as a thread that prints while Python ends can abort it

    def _report(self, status: Mapping[str, Any]) -> None:
        last = False
        while True:
            try:
                _send(self._server, status)
            except (OSError, HTTPException) as error:
                self._say(str(error) or type(error).__name__)
            except ValueError:  # whose text may hold the token
                self._say(f"no request can be made with the token in {self._server.token}")
            if last:
                return
            last = self._ended.wait(_EVERY)
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
        elif done > self._before and not last:  # of one that was stopped nobody knows when it goes on
            seconds = (time.monotonic() - self._began) * (1 - done) / (done - self._before)
            status["estimatedRemainingSeconds"] = min(math.ceil(seconds), _MOST)
        return status

    def _say(self, why: str) -> None:
        if not self._said:
            self._said = True
            what = f"Kubeflow Trainer at {self._server.host} does not take the training's progress: {why}"
            print(f"torchtally: {what}; the training goes on without, or tells it later", file=sys.stderr, flush=True)


def _send(server: StatusServer, status: Mapping[str, Any]) -> None:
    """Raises OSError, HTTPException, and ValueError for what is no token."""
    # Both are read anew, as the kubelet renews them. No urllib: it would take the token to proxies and redirections.
    context = ssl.create_default_context(cafile=server.ca)
    headers = {"Authorization": f"Bearer {server.token.read_text().strip()}", "Content-Type": "application/json"}
    with closing(HTTPSConnection(server.host, server.port, timeout=_TIMEOUT, context=context)) as connection:
        connection.request("POST", server.path, json.dumps({"trainerStatus": status}), headers)
        code = connection.getresponse().status
    if not 200 <= code < 300:
        raise HTTPException(f"it answers {code} {responses.get(code, '')}".strip())
