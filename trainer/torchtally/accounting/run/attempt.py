"""One start of a run: this process's place in it, and whether it continues with what another start has done."""

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from torchtally import compat, events
from torchtally.accounting.data.fingerprint import is_unknown
from torchtally.accounting.ledger.state import State
from torchtally.accounting.ledger.tally import Membership, Run
from torchtally.accounting.proofs import kept_lines, proof_file
from torchtally.accounting.run import restart
from torchtally.accounting.run.restart import Record
from torchtally.distributed import own_group, preflight
from torchtally.distributed.failures import Failures
from torchtally.distributed.handshake import agree
from torchtally.environment import Process, call_seconds
from torchtally.errors import Ending, Lost, Refused, lost_a_peer, peer_lost
from torchtally.pod import retries
from torchtally.proof import line as tally_line
from torchtally_observer import signs

_handshakes = count()  # of all accounts: each handshake has its own keys in the job's store
_accounts = count(1)  # of this process
_completed: set[str] = set()  # ids of the runs that this process has completed


def _judge_anew(all_ranks: list[dict[str, Any]]) -> str | None:
    """What is wrong if only some ranks begin anew."""
    anew = {bool(each["facts"]["_anew"]): f"rank {rank} ({each['pod']})" for rank, each in enumerate(all_ranks)}
    if len(anew) == 1:
        return None
    return (
        f"{anew[True]} has anew=True and {anew[False]} has not, as where one of them does not see the checkpoint: "
        "leave anew out, and load account.resume_from(path), which is rank 0's on all ranks; or let all pods share its "
        "volume (in the chart, model.accessMode=ReadWriteMany)"
    )


def _device(process: Process) -> torch.device:
    """That on which the program's group communicates."""
    if "nccl" not in dist.get_backend_config():
        return torch.device("cpu")
    if torch.cuda.is_initialized():
        return torch.device("cuda")
    return torch.device("cuda", process.local_rank % torch.cuda.device_count())  # which a library will choose


class Final:
    """A `with` statement for what can fail. A failure is final: the first is raised again in a loop that catches it.

    It is a class, as each batch enters it: a generator takes several times as long.
    """

    def __init__(self, tell: Callable[[Ending], None]) -> None:
        self._tell = tell
        self.failure: Ending | None = None

    def check(self) -> None:
        """Raise the failure, if there was one."""
        if self.failure:
            raise self.failure

    def fail(self, ending: Ending) -> None:
        """Tell the other ranks of a failure."""
        self.failure = ending
        self._tell(ending)

    def __enter__(self) -> None:
        self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Ending):
            self.fail(error)


class Attempt:
    """One start of a run. Making one is a collective call of all processes.

    Attributes:
        anew: Whether the weights are those of a beginning, by the program's word or for want of a checkpoint.
        resumes: Whether the program has been given a checkpoint to load.

    Raises:
        Refused: The processes contradict each other.
    """

    def __init__(
        self,
        *,
        task: str,
        plan: Mapping[str, Any],
        seed: int,
        group: dist.ProcessGroup | None,
        anew: bool,
        process: Process,
        problem: str | None,
        off: Sequence[str],
    ) -> None:
        self._process, self.anew, self._stated_anew, self.resumes = process, anew, anew, False
        number = next(_accounts)
        assert dist.group.WORLD is not None
        self._default = weakref.ref(dist.group.WORLD)
        self._failures = Failures(PrefixStore(f"torchtally/account {number}", compat.default_store()))
        problem = problem or tally_line.problem({"task": task, "plan": dict.fromkeys(plan, 1), "seed": seed})
        signs.give()
        own, self._path, record = restart.find(number, process.run, task)
        # A seed of another type, which is refused with the other facts, may have no JSON form.
        stated = {"seed": seed if type(seed) is int else repr(seed), "_anew": anew, "guards off": [*off]}
        facts = {"task": task, "plan": dict(plan), **stated}
        of_rank_0 = {
            "_run": own,
            "_record": [record.run, record.attempt] if record else None,
            "_began": time.time_ns() // 1_000_000,
        }
        agreed = self.agree(facts | of_rank_0, problem, _judge_anew)
        self._known: tuple[str, int] | None = tuple(agreed["_record"]) if agreed["_record"] else None
        self.members = Membership.of(group)
        self.begun = self._reported = False
        self._loaded: State | None = None
        self.run = Run(
            run=self._known[0] if self._known else agreed["_run"],
            attempt=max(process.attempt, self._known[1] + 1 if self._known else 0),
            pod=process.pod,
            task=task,
            plan={},  # in epochs, once the batches are known
            rank=self.members.rank,
            world=self.members.world,
            seed=seed,
            data="",
            began=agreed["_began"],
        )
        preflight.run(process, _device(process))
        restart.claim(self._path)  # not of a start that is refused: another one in this process is a restart, too

    @property
    def prints(self) -> bool:
        """Whether this process prints what is said once for all."""
        return self.members.leads and self.members.rank == 0

    def agree(
        self,
        facts: Mapping[str, Any],
        problem: str | None,
        judge: Callable[[list[dict[str, Any]]], str | None] = lambda all_ranks: None,
        *,
        call: str | None = None,
    ) -> Mapping[str, Any]:
        """Compare facts with all processes; returns rank 0's. A collective call. Raises Refused, and Lost.

        Ranks that do not come are waited for as long as for a handshake or, with the name of a `call` between two
        steps, as long as for a collective call.
        """
        self.check_group(call or "an epoch begins")
        process = self._process
        return agree(
            PrefixStore(f"torchtally/{next(_handshakes)}", compat.default_store()),
            process.rank,
            process.world,
            process.pod,
            facts,
            problem,
            judge,
            failures=self._failures,
            call=call,
            timeout=timedelta(seconds=call_seconds(os.environ)) if call else None,
        )

    def check_group(self, where: str) -> None:
        """Refuse a call of all ranks if the program has destroyed its process group since the beginning."""
        if (default := self._default()) is None or default is not dist.group.WORLD:
            raise Refused(f"{where}, and {own_group.DESTROYED}")

    def tell(self, error: BaseException) -> None:
        """Tell the other ranks what ends this start on this one. Not a collective call."""
        self._failures.post(error)

    def cause(self, error: BaseException) -> BaseException:
        """Return what ends this start: the error of another rank where that rank is lost, and else this one's."""
        if not isinstance(error, Ending) and lost_a_peer(f"{type(error).__name__}: {error}"):
            error = peer_lost(error)
        if isinstance(error, Lost):
            first = self._failures.first()  # which can be this one
            error = first if first and str(error) not in str(first) else error
        self.tell(error)
        return error

    def problem(self, loaded: State | None) -> str | None:
        """Why this start cannot begin: it resumes and has loaded no state, so its weights may be of another moment."""
        if self.begun or loaded or self.anew or not (self._known or self._process.attempt or self.resumes):
            return None
        file = f", or delete {self._path}" if self._known and self._path else ""
        return (
            f"run {self.run.run} of {self.run.task} is not complete, and this start has not loaded its state: call "
            "load_state_dict() with the state in the checkpoint that the weights come from; only if the weights begin "
            f"anew, too, pass anew=True{file}"
        )

    def take_up(self, loaded: State, *, reported: bool, grown: bool = False) -> None:
        """Continue with the run of a loaded state, to a plan that may have `grown`, unless that is `reported` already.

        Raises Refused.
        """
        # The data of the next fold can have the same length.
        unnamed = [name for name, phase in loaded.phases.items() if is_unknown(phase.data)]
        if loaded.run in _completed and (unnamed or not grown):
            more = f"; to make more epochs of a run, the data of {unnamed[0]} must have a fingerprint" if grown else ""
            raise Refused(
                f"the state is of run {loaded.run}, which this process has completed: give another account, such as "
                f"that of the next fold, its own state or its own folder of checkpoints{more}"
            )
        reached = self._known[1] if self._known and self._known[0] == loaded.run else -1
        attempt = max(loaded.attempt, reached, self._process.attempt - 1) + 1
        self.run = replace(self.run, run=loaded.run, attempt=attempt)
        self._loaded, self._reported = loaded, reported

    def begin(self) -> None:
        """Record the run, and report the beginning."""
        if self.begun:
            return
        self.begun = True
        if self.prints:
            self._write(complete=False)
            if not self._reported:
                beginning = self._beginning()
                events.emit(beginning, self.run.source)
                if isinstance(beginning, events.Resumed):
                    retries.resumed(beginning, self.run.source)

    @property
    def begins_anew(self) -> bool:
        """Whether the program has said that its weights are those of a beginning, or of a state that it has loaded."""
        return self._stated_anew or self._loaded is not None

    def complete(self, made: tuple[str, str] | None) -> None:
        """Record and report that the plan is fulfilled, and the model, if one is `made`."""
        signs.over()
        _completed.add(self.run.run)
        if self.prints:
            model, output = made or (None, None)
            events.emit(events.Complete(model=model, output=output), self.run.source)
            self._write(complete=True)

    def archive(self, last: Mapping[str, Any]) -> None:
        """Write the proof of the run, which has this last line, beside its record: logs are lost with their pods."""
        if self.prints:
            proof_file.write_beside(self._path, kept_lines.lines(self.run.run), last)

    def leave(self) -> None:
        """Keep nothing of the program's process group."""
        self._failures.close()

    def close(self) -> None:
        """End this start."""
        restart.release(self._path)

    @property
    def is_complete(self) -> bool:
        """Whether this process has completed the run."""
        return self.run.run in _completed

    def _beginning(self) -> events.Event:
        if not self._loaded:
            return events.Begun(task=self.run.task, world=self.run.world)
        epoch, consumed = self._loaded.reached
        return events.Resumed(
            task=self.run.task, world=self.run.world, checkpoint=None, epoch=epoch, position=consumed, discarded=0
        )

    def _write(self, *, complete: bool) -> None:
        restart.write(self._path, Record(self.run.run, self.run.attempt, self.run.task, complete))
