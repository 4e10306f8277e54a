"""A loop that saves its own checkpoints is asked to stop by a signal that one rank receives."""

import os
import signal

import pytest
from accounts import run
from squares import Squares

from torchtally import Account, events
from torchtally.checkpoints import stopping

STEPS = 8  # of an epoch


def trains(saves: bool) -> int:
    """Ends in an epoch by a signal, of which all ranks learn after the step, or a later one."""
    stopping._SYNCHRONIZE_SECONDS = 0
    steps = 0
    with Account("t", epochs=2) as account:
        loader = account.loader(Squares(2 * STEPS), batch_size=1)
        for _ in account.epochs():
            for _ in loader:
                steps += 1
                if steps == 3 and account.rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                account.commit()
                if account.asked_to_stop() and saves:
                    account.state_dict()
                assert steps < 2 * STEPS
    return steps


@pytest.mark.parametrize(("saves", "said"), [(True, "a checkpoint"), (False, "without a new checkpoint")])
def test_the_account_ends_the_start_in_place_of_the_next_batch(saves: bool, said: str) -> None:
    first, second = run(2, trains, saves)
    for each in (first, second):
        assert each["code"] == 128 + signal.SIGTERM, each["err"]
        assert f"stopped by signal 15, which rank 1 received, after a step and {said}" in each["err"]
    told = [each.event for each in events.in_lines(first["out"].splitlines())]
    [stopped] = [each for each in told if isinstance(each, events.Stopped)]
    assert (stopped.saved, stopped.epoch) == (saves, 1) and stopped.position >= 3 * 2


def test_a_run_that_nobody_stops_is_complete() -> None:
    for each in run(2, asks_only):
        assert each["code"] == 0, each["err"]


def asks_only() -> None:
    with Account("t", epochs=1) as account:
        for _ in account.loader(Squares(2 * STEPS), batch_size=1):
            account.commit()
            assert not account.asked_to_stop()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
