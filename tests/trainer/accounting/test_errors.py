"""How an account's errors end a program: as exceptions, with exit codes where it asks for them, on all ranks."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import launched
import pytest
import ranks
import torch
import torch.distributed as dist
from accounts import alone, as_rank, run
from messages import plain
from witness import Noisy

from torchtally import Account, Refused, Unproven
from torchtally.environment import Process

N, SIZE = 29, 4
BAD = "log(): the name 'bad name' must have only letters, digits, and _, and no digit first"


def asks() -> list[bool]:
    account = Account("t", epochs=1)
    before = [hasattr(account, name) for name in ("task", "rank", "nothing")]
    with pytest.raises(Refused, match="must be used in a `with` statement"):
        account.loader(Noisy(N), batch_size=SIZE)
    with account:
        inside = [hasattr(account, name) for name in ("task", "rank", "nothing")]
        account.stop("enough")
    return before + inside


def test_hasattr_answers_before_and_in_the_with_statement() -> None:
    assert alone(asks)["result"] == [True, False, False, True, True, False]


# Exceptions, and exit codes.


PROGRAM = f"""
import sys, torch.distributed as dist, torchtally
from torchtally import Account
how = sys.argv[1]
sys.excepthook = lambda kind, error, trace: print("a hook of the program:", error)
if how != "plain":
    torchtally.exit_codes()
    torchtally.exit_codes()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # which sets a hook, too
for again in range(2):
    with Account("t", epochs=1, anew=True) as account:
        for batch in account.epoch("train", 1, account.loader(range({N}), batch_size={SIZE})):
            if again and how == "its own":
                raise ValueError("of the program")
            if again and how == "later":
                sys.excepthook = lambda kind, error, trace: print("a later hook:", error)
            if again and how != "loses":
                account.log(**{{"bad name": 1.0}})
            if again:
                continue
            account.commit()
"""


def ends(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=launched.environment(**environment), capture_output=True, text=True)


@pytest.mark.parametrize(
    ("how", "code", "out", "err"),
    [
        ("plain", 1, f"a hook of the program: {BAD}", ""),
        ("codes", 2, "", f"torchtally: {BAD}\n"),
        ("loses", 3, "", "torchtally: train epoch 1 is not proved: of 29 samples"),
        ("its own", 1, "a hook of the program: of the program", "not proved: ValueError has ended it before its plan"),
        ("later", 1, f"a later hook: {BAD}", ""),
    ],
)
def test_exceptions_become_exit_codes_where_the_program_asks_for_them(how: str, code: int, out: str, err: str) -> None:
    ended = ends(PROGRAM, how)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    assert ended.stdout.count("a hook of the program:") + ended.stdout.count("a later hook:") == (out != "")
    assert out in ended.stdout
    assert plain(ended.stderr).count(err) == 1 or err == ""


UNCAUGHT = """
import torch
from torchtally import Account
with Account("t", epochs=1) as account:
    account.log(**{"bad name": 1.0})
"""


def test_without_a_launcher_an_error_is_an_exception_and_the_message_of_the_pod(tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.touch()
    ended = ends(UNCAUGHT, TORCHTALLY_TERMINATION_LOG=str(message), HOSTNAME="alone")
    assert ended.returncode == 1
    assert plain(ended.stderr).splitlines()[-1].endswith(f"torchtally.errors.Refused: {BAD}")
    assert plain(message.read_text()) == f"rank 0 (alone): {BAD}"


def catches() -> None:
    with Account("t", epochs=1) as account:
        for batch in account.epoch("train", 1, account.loader(Noisy(N), batch_size=SIZE)):
            if batch.step == 3:
                with pytest.raises(Refused, match="bad name"):
                    account.log(**{"bad name": 1.0})
            account.commit()


def test_a_loop_that_catches_an_error_and_goes_on_is_not_proved() -> None:
    found = alone(catches)
    assert (found["code"], found["err"].count(BAD)) == (2, 1)
    assert not found["lines"]


# A world of one, and other launchers.


ONE = """
import torch, torch.distributed as dist
from torchtally import Account
for _ in range(2):
    with Account("t", epochs=1, anew=True) as account:
        for batch in account.epoch("train", 1, account.loader(range(9), batch_size=2)):
            account.commit()
    assert account.world == 1 and not dist.is_initialized()
"""


def test_a_program_without_a_launcher_and_a_process_group_is_a_world_of_one() -> None:
    ended = ends(ONE)
    assert (ended.returncode, ended.stdout.count("✓ every sample exactly once")) == (0, 2), ended.stderr


def test_a_launched_program_without_a_process_group_is_told_what_lacks() -> None:
    ended = ends(ONE, RANK="0", WORLD_SIZE="2")
    assert ended.returncode == 1
    assert (
        plain(ended.stderr)
        .splitlines()[-1]
        .endswith(
            "Refused: the program has no process group, and RANK, WORLD_SIZE are set: call "
            "torch.distributed.init_process_group before you make an Account, which needs MASTER_ADDR, MASTER_PORT as "
            "well"
        )
    )
    with pytest.raises(Refused, match="not set: RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, TORCHELASTIC_RESTART_COUNT; start"):
        Process.from_env({"WORLD_SIZE": "2"})


SPAWNS = f"""
import os, sys, torch.distributed as dist, torch.multiprocessing as mp
from torchtally import Account
def work(rank, world, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", port
    dist.init_process_group("gloo", rank=rank, world_size=world)
    with Account("t", epochs=1) as account:
        for batch in account.epoch("train", 1, account.loader(range({N}), batch_size={SIZE})):
            if rank == 1 and sys.argv[2] == "refused":
                account.log(**{{"bad name": 1.0}})
            account.commit()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.start_processes(work, (2, sys.argv[1]), nprocs=2, start_method=sys.argv[3])
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("how", ["right", "refused"])
def test_ranks_of_multiprocessing_need_no_variables_of_a_launcher(how: str, method: str, tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    command = [sys.executable, str(script), str(ranks.free_port()), how, method]
    ended = subprocess.run(command, env=launched.environment(), capture_output=True, text=True)
    assert ended.returncode == (how == "refused"), ended.stderr
    assert ("✓ every sample exactly once" in ended.stdout) == (how == "right")
    assert how == "right" or f"torchtally.errors.Refused: {BAD}\n" in plain(ended.stderr)


# Other ranks.


def refused_alone(which: int, where: str) -> None:
    """Rank `which` is refused before its third step, where the others wait for it."""
    os.environ["TORCHTALLY_CALL_SECONDS"] = "60"
    with Account("t", epochs=1) as account:
        for batch in account.epoch("train", 1, account.loader(Noisy(N), batch_size=SIZE)):
            if batch.step == 3 and account.rank == which:
                account.log(**{"bad name": 1.0})
            if where == "collective call":
                dist.all_reduce(torch.ones(1))
            if batch.step == 3 and where == "skip":
                account.skip("not finite")
            else:
                account.commit()


@pytest.mark.parametrize("where", ["collective call", "skip", "proof"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_that_is_refused_alone_ends_the_others_with_its_sentence(which: int, where: str) -> None:
    found = run(2, refused_alone, which, where)
    assert [each["code"] for each in found] == [2, 2]
    assert found[which]["err"].endswith(f"torchtally: {BAD}\n")
    assert found[1 - which]["err"].endswith(f"torchtally: rank {which} (pod-{which}): {BAD}\n")


def fails_alone() -> Any:
    with Account("t", epochs=1) as account:
        for batch in account.epoch("train", 1, account.loader(Noisy(N), batch_size=SIZE)):
            if batch.step == 3 and account.rank == 1:
                raise ZeroDivisionError("the program's own")
            account.commit()


def test_a_rank_that_fails_alone_ends_the_others_as_lost() -> None:
    other, own = ranks.run(2, as_rank, fails_alone)
    assert isinstance(own, ZeroDivisionError)
    assert other["code"] == 203
    assert other["err"].endswith("torchtally: rank 1 (pod-1) failed: ZeroDivisionError: the program's own\n")


def argues() -> None:
    """The account itself is refused on rank 1."""
    with Account("t", epochs=1, plan={"train": 1} if dist.get_rank() else None):
        pass


def test_an_account_that_is_refused_on_one_rank_is_refused_on_all() -> None:
    found = run(2, argues)
    assert [each["code"] for each in found] == [2, 2]
    assert all("rank 1 (pod-1): an Account takes epochs=1 or plan={'train': 1}" in each["err"] for each in found)


def calls_alone(what: str, which: int) -> None:
    os.environ["TORCHTALLY_CALL_SECONDS"] = "2"
    with Account("t", epochs=1) as account:
        for batch in account.epoch("train", 1, account.loader(Noisy(N), batch_size=SIZE)):
            if batch.step == 3 and account.rank == which:
                getattr(account, what)("for a reason")
            else:
                account.commit()


@pytest.mark.parametrize(("what", "which"), [("skip", 0), ("skip", 1), ("stop", 1)])
def test_a_call_of_one_rank_alone_ends_in_time_and_names_the_others(what: str, which: int) -> None:
    said = f"rank {1 - which} did not call {what}() within 0:00:02: all ranks must call it for the same step"
    found = run(2, calls_alone, what, which)
    assert [each["code"] for each in found] == [203, 203]
    assert found[which]["err"].endswith(f"torchtally: {said}\n")
    assert found[1 - which]["err"].endswith(f"torchtally: rank {which} (pod-{which}): {said}\n")


def test_a_time_that_is_none_is_refused() -> None:
    found = alone(waits, "soon")
    assert found["code"] == 2
    assert "TORCHTALLY_CALL_SECONDS='soon' must be a number of seconds from 1" in found["err"]


def waits(seconds: str) -> None:
    os.environ["TORCHTALLY_CALL_SECONDS"] = seconds
    with Account("t", epochs=1):
        pass


# A process group that is destroyed too early.


def destroys(at: int) -> None:
    with Account("t", epochs=1) as account:
        for batch in account.epoch("train", 1, account.loader(Noisy(N), batch_size=SIZE)):
            if batch.step == at:
                dist.destroy_process_group()
            account.commit()
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.mark.parametrize(("at", "code"), [(0, 0), (3, 2)])
def test_a_group_may_be_destroyed_within_the_account_once_all_is_proved(at: int, code: int) -> None:
    for each in run(2, destroys, at):
        assert each["code"] == code, each["err"]
        assert code == 0 or each["err"].endswith(
            "train epoch 1 is not proved, and the program has called destroy_process_group(): call it after the end of "
            "the account's `with` statement\n"
        )


def trains_with_checkpoints(folder: str) -> None:
    with Account("t", epochs=1, anew=True) as account:
        account.checkpoints(folder, {"model": torch.nn.Linear(1, 1)}).resume()
        for _ in account.epoch("train", 1, account.loader(Noisy(N), batch_size=SIZE)):
            account.commit()


def forks_after_its_end(folder: str) -> int:
    """The status of a process that is forked after a run, as the next run's workers are, and collects its garbage."""
    gc.collect()
    gc.disable()
    trains_with_checkpoints(folder)
    if dist.is_initialized():
        dist.destroy_process_group()
    child = os.fork()
    if not child:
        signal.alarm(30)
        gc.collect()
        os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("world", [1, 2])
def test_garbage_of_a_run_does_no_harm_to_the_workers_of_the_next(tmp_path: Path, world: int) -> None:
    found = run(world, forks_after_its_end, str(tmp_path))
    assert [each["result"] for each in found] == [0] * world, found[0]["err"]


def test_what_is_not_proved_is_an_exception() -> None:
    found = alone(unproven)
    assert found["result"].startswith("train epoch 1 is not proved: of 29 samples")


def unproven() -> str:
    with pytest.raises(Unproven) as raised, Account("t", epochs=1) as account:
        for _ in account.epoch("train", 1, account.loader(Noisy(N), batch_size=SIZE)):
            pass
    return str(raised.value)
