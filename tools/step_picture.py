#!/usr/bin/env python
"""Draws one step of a loop over an Account, as the code takes it: docs/contributing/step.svg; `make docs` runs it.

The loop is the one of docs/guides/own-loop.md, on one rank. A profiler notes each call from one module to another.
"""

import contextlib
import gc
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch
from xml.sax.saxutils import escape

import torch
from torch.utils.data import TensorDataset

import torchtally
from torchtally import Account

PICTURE = Path(__file__).parents[1] / "docs/contributing/step.svg"
_ACCOUNT = Path(torchtally.__file__).parent / "accounting"
# `data` and `randomness` are left out: they give a value, and call no other room.
ROOMS = ("account", "run", "reporting", "guards", "ledger", "batches", "order")
_FACE = {"account", "lifetime", "loader"}  # modules that users call: one column
_LETTER, _ROW, _TOP = 6.1, 28, 30  # pixels
_STYLE = """\
text { font: 11px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; text-anchor: middle; }
.room { font-weight: 600; font-size: 13px; fill: #808080; }
.moment { font: 600 12px ui-monospace, monospace; fill: #808080; text-anchor: start; }
.call { fill: #fff; }
.box { fill: #2f5f8f; }
.line { fill: none; stroke: #808080; }
.lane { stroke: #808080; stroke-dasharray: 2 5; }"""


@dataclass(frozen=True)
class Stay:
    """Some calls in a row from one module into another."""

    moment: str
    caller: str  # `ROOM/MODULE`; that of the user's loop is empty
    module: str
    functions: tuple[str, ...]

    @property
    def text(self) -> str:
        more = " …" if len(self.functions) > 1 else ""
        return f"{self.module.rpartition('/')[2]}: {self.functions[0]}{more}"


class _Data(TensorDataset):
    fingerprint = "ones"


class _Profile:
    """The calls of the profiled lines."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str, str]] = []

    @contextlib.contextmanager
    def of(self, moment: str) -> Iterator[None]:
        def note(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and (module := _module(frame)) and (caller := _caller(frame)) != module:
                self.calls.append((moment, caller, module, frame.f_code.co_name))

        gc.disable()  # what it frees calls back at any moment
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
            gc.enable()


def _module(frame: FrameType) -> str:
    """The module of the account that a named function is in; empty for other code."""
    path = Path(frame.f_code.co_filename)
    if frame.f_code.co_name.startswith("<") or not path.is_relative_to(_ACCOUNT):
        return ""
    module = path.relative_to(_ACCOUNT).with_suffix("").as_posix()
    return module if _room(module) in ROOMS else ""


def _room(module: str) -> str:
    room = module.partition("/")[0]
    return "account" if room in _FACE else room


def _caller(frame: FrameType) -> str:
    """The module that the call came from, whatever of PyTorch's lies between."""
    above = frame.f_back
    while above:
        if module := _module(above):
            return module
        above = above.f_back
    return ""


def stays() -> list[Stay]:
    """One step in the middle of an epoch, from the next batch on."""
    profile, model = _Profile(), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = _Data(torch.ones(32, 2), torch.ones(32, 1))
    still = patch("time.monotonic", return_value=0.0)  # no report becomes due
    with contextlib.redirect_stdout(io.StringIO()), still, Account("picture", epochs=1) as account:
        account.optimizer(optimizer)
        loader = account.loader(data, batch_size=4)
        for _ in account.epochs():
            batches, seen = iter(loader), 0
            while True:
                of = profile.of if seen == 3 else contextlib.nullcontext
                with of("for inputs, labels in loader:"):
                    batch = next(batches, None)
                if batch is None:
                    break
                loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
                with of("loss = account.weigh(loss)"):
                    loss = account.weigh(loss)
                with of("loss.backward()"):
                    loss.backward()
                with of("optimizer.step()"):
                    optimizer.step()
                optimizer.zero_grad()
                seen += 1
    return [
        Stay(moment, caller, module, tuple(dict.fromkeys(call[3] for call in calls)))
        for (moment, caller, module), calls in groupby(profile.calls, key=lambda call: call[:3])
    ]


def rooms(found: list[Stay]) -> list[str]:
    """The rooms that the step stays in, in order of time."""
    return [room for room, _ in groupby(_room(stay.module) for stay in found)]


def drawn() -> str:
    """The picture: a column for each room, and a box for each stay in a module."""
    parts, y, last, found = [], _TOP, "", stays()
    middles, widths, right = {}, {}, 4
    for room in ROOMS:
        longest = max([len(room), *(len(stay.text) for stay in found if _room(stay.module) == room)])
        widths[room] = int(longest * _LETTER) + 14
        middles[room] = right + widths[room] // 2
        right += widths[room] + 4
    for stay in found:
        if stay.moment != last:
            y += _ROW
            parts.append(f'<text x="8" y="{y - 6}" class="moment">{escape(stay.moment)}</text>')
            last = stay.moment
        x, width = middles[_room(stay.module)], widths[_room(stay.module)]
        if stay.caller:
            parts.append(f'<path class="line" d="M{middles[_room(stay.caller)]} {y + 11} H{x}"/>')
        parts.append(f'<rect class="box" x="{x - width // 2}" y="{y}" width="{width}" height="22" rx="4"/>')
        parts.append(f'<text x="{x}" y="{y + 15}" class="call">{escape(stay.text)}</text>')
        y += _ROW
    lanes = [f'<path class="lane" d="M{middles[room]} {_TOP} V{y}"/>' for room in ROOMS]
    heads = [f'<text x="{middles[room]}" y="20" class="room">{room}</text>' for room in ROOMS]
    title = "One step of a loop over an Account, through the rooms of the account"
    first = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right} {y}" role="img" aria-label="{title}">'
    return "\n".join([first, f"<style>\n{_STYLE}\n</style>", *lanes, *heads, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn())
