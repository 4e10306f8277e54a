"""Loops with an Account on real ranks: what each returned, printed and ended with."""

import contextlib
import io
import json
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from messages import plain
from squares import Squares
from torch.distributed.distributed_c10d import Store

from torchtally import Account
from torchtally.accounting.proofs import kept_lines
from torchtally.accounting.run import attempt
from torchtally.errors import Ending
from torchtally.pod import failure
from torchtally.proof.line import PREFIX
from torchtally.verifier.log import Log
from torchtally.verifier.verdict import Verdict, judge

Case = tuple[Any, ...]  # a function and its arguments


def as_rank(rank: int, world: int, store: Store, body: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """`body(*arguments)` in a process group and torchtally's environment: what it returned, printed and ended with."""
    [found] = _as_rank(rank, world, store, [(body, *arguments)])
    if isinstance(found, Exception):
        raise found
    return found


def _as_rank(rank: int, world: int, store: Store, cases: Iterable[Case]) -> list[dict[str, Any] | Exception]:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), HOSTNAME=f"pod-{rank}")
    os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ.update(TORCHTALLY_RUN=f"drawn by {rank}", TORCHELASTIC_RESTART_COUNT="0")
    multiprocessing.set_start_method("fork", force=True)  # Linux's own; a rank has inherited a slow one
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    environment, found = dict(os.environ), list[dict[str, Any] | Exception]()
    for body, *arguments in cases:
        attempt._completed.clear(), kept_lines._kept.clear()  # as in a process of its own
        out, err, code, result = io.StringIO(), io.StringIO(), 0, None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                result = body(*arguments)
            except (Ending, SystemExit) as end:
                code = code_of(end)
            except Exception as error:
                error.add_note(traceback.format_exc())
                found.append(error)
                continue
            finally:
                os.environ.clear()
                os.environ.update(environment)
        printed, lines = out.getvalue(), tallies(out.getvalue())[0]
        found.append({"result": result, "lines": lines, "out": printed, "code": code, "err": plain(err.getvalue())})
    return found


def code_of(end: Ending | SystemExit) -> Any:
    """The exit code of a program that does not catch this; it prints a sentence of torchtally."""
    return failure.end(end) if isinstance(end, Ending) else end.code


def tallied(text: str) -> list[dict[str, Any]]:
    """All tally lines of a log, wherever in a line they begin."""
    return [json.loads(line.partition(PREFIX)[2]) for line in text.splitlines() if PREFIX in line]


def tallies(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The lines of phases, and those of the whole run."""
    found = tallied(text)
    return [line for line in found if line["phase"] != "all"], [line for line in found if line["phase"] == "all"]


def in_turn(world: int, cases: Iterable[Case]) -> Iterator[list[dict[str, Any]]]:
    """What `run` returns of each of these bodies with their arguments, which share one start of the ranks."""
    of_ranks = ranks.run(world, _as_rank, [*cases])
    for found in zip(*(raised_or(each) for each in of_ranks), strict=True):
        yield [raised_or(each) for each in found]


def assert_ends(subtests: pytest.Subtests, world: int, cases: Iterable[tuple[Case, int, str]]) -> None:
    """Each of these ends on every rank with its exit code, and with its sentence among what it prints."""
    cases = [*cases]
    for (case, code, sentence), found in zip(cases, in_turn(world, (case for case, *_ in cases)), strict=True):
        with subtests.test(f"{case[0].__name__}{case[1:]}"):
            for each in found:
                assert each["code"] == code, each["err"]
                assert sentence in each["err"]
                assert "Traceback" not in each["err"]


def raised_or(found: Any) -> Any:
    if isinstance(found, BaseException):
        raise found
    return found


def run(world: int, body: Callable[..., Any], *arguments: Any) -> list[dict[str, Any]]:
    return [raised_or(each) for each in ranks.run(world, as_rank, body, *arguments)]


def alone(body: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    return run(1, body, *arguments)[0]


def logs_its_loss(environment: Mapping[str, str]) -> None:
    """Two epochs of 9 samples, with a loss in each step."""
    os.environ.update(environment)
    with Account(task="own", plan={"train": 2}, seed=7) as account:
        source = account.loader(Squares(9), "train", batch_size=2)
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, source):
                account.commit()
                account.log(loss=torch.tensor(1 / batch.step))


def verified(*attempts: list[dict[str, Any]], name: str | None = None) -> Verdict:
    """What the verifier says of the logs of all ranks in all attempts, which have one run, or of the run `name`."""
    log = Log()
    for number, found in enumerate(attempts):
        for rank, each in enumerate(found):
            log.read(f"attempt-{number}-rank-{rank}.log", io.StringIO(each["out"]))
    [verdict] = judge(log, name)
    return verdict
