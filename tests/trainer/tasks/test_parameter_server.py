"""The parameter server's task: the arithmetic of one process, in both forms; whole runs; and faults."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import clean_log
import launched
import proofs
import psutil
import pytest
import ranks
import torch
import toy
from commands import verified
from torch.distributed import TCPStore
from torch.nn import functional

from torchtally import cli, events
from torchtally.accounting.ledger.tally import Phase, Run
from torchtally.accounting.order.schedule import Schedule
from torchtally.errors import Ending, Lost
from torchtally.pod import network_interface
from torchtally.tasks.parameter_server import training
from torchtally.tasks.parameter_server.options import Options
from torchtally.tasks.parameter_server.remote_table import RemoteTable
from torchtally.tasks.parameter_server.task import TASK, Model
from torchtally.tasks.parameter_server.training import batches

Weights = dict[str, list[Any]]


def trained(rank: int, world: int, store: TCPStore, options: Options, output: str) -> dict[str, Any]:
    """This rank's part of a training, as an agent with this store starts it; on rank 0 with what came of all."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "WORLD_SIZE": str(world),
        "HOSTNAME": f"pod-{rank}",
    }
    os.environ |= {"TORCHTALLY_RUN": "test", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHTALLY_DEVICE": "cpu"}
    trained = training.fit("parameter-server", options, Path(output))
    return {
        "weights": {name: value.tolist() for name, value in trained.model.state_dict().items()},
        "lines": trained.lines,
        "losses": [epoch.loss for epoch in trained.epochs],
        "correct": [epoch.correct for epoch in trained.epochs],
    }


def together(world: int, options: Options, folder: Path) -> dict[str, Any]:
    """What a training over so many ranks comes to."""
    found = ranks.run(world, trained, options, str(folder))
    for each in found:
        if isinstance(each, Exception):
            raise each
    first: dict[str, Any] = found[0]
    return first


def in_one_process(options: Options, trainers: int) -> tuple[Weights, list[float], int]:
    """Plain PyTorch, on the whole batch of each step: the weights, the epochs' losses, and what is right at last."""
    train, test = TASK.load(None, Path())
    model = TASK.model(options)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    run = Run(run="", attempt=0, pod="", task="", plan={}, rank=0, world=1, seed=options.seed, data="")
    losses = []
    for epoch in range(1, options.epochs + 1):
        batch = options.batch_size * trainers
        phase = Phase(name="train", epoch=epoch, n=len(train), batch=batch, contract="exact", order="feistel-1")
        total = 0.0
        for indices in batches(run, phase):
            loss = functional.cross_entropy(model(train.inputs[indices]), train.labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(indices)
        losses.append(total / len(train))
    correct = int((model(test.inputs).argmax(dim=1) == test.labels).sum())
    return {name: value.tolist() for name, value in model.state_dict().items()}, losses, correct


def assert_same(found: Weights, wanted: Weights) -> None:
    assert found.keys() == wanted.keys() == {"table.weight", "linear.weight", "linear.bias"}
    for name, values in wanted.items():
        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(values), rtol=1e-5, atol=1e-6)


def test_both_forms_give_the_same_and_what_one_process_gives(tmp_path: Path) -> None:
    """2 epochs of 3 trainers, of 5 steps, the last of them uneven."""
    forms = (Options(epochs=2, batch_size=7, lr=0.5, form=form) for form in ("rpc", "collective"))
    rpc, collective = (together(5, options, tmp_path / options.form) for options in forms)
    assert_same(rpc["weights"], collective["weights"])
    wanted, losses, correct = in_one_process(Options(epochs=2, batch_size=7, lr=0.5), trainers=3)
    for name, value in TASK.model(Options()).state_dict().items():  # both parts have learnt something that would show
        assert (torch.tensor(wanted[name]) - value).abs().max() > 1e-3
    assert_same(rpc["weights"], wanted)
    assert rpc["losses"] == pytest.approx(losses)
    assert rpc["correct"][-1] == collective["correct"][-1] == correct
    for lines in (rpc["lines"], collective["lines"]):
        assert [(line["phase"], line["world"], line["consumed"]) for line in lines] == [
            ("train", 3, 100),
            ("test", 3, 1000),
        ] * 2
        assert {(line["lost"], line["doubled"]) for line in lines} == {(0, 0)}


Change = Callable[[int, TCPStore], None]


def end(rank: int, world: int, store: TCPStore, output: str, change: Change) -> str:
    """How a training of one epoch ends on this rank, after a change."""
    change(rank, store)
    try:
        trained(rank, world, store, Options(epochs=1), output)
    except Ending as ending:
        return f"{ending.code} {ending}"
    return "trained"


def nothing(rank: int, store: TCPStore) -> None:
    pass


def end_of_all(world: int, folder: Path, change: Change = nothing) -> str:
    """How it ends on each rank, which must be the same."""
    (said,) = set(ranks.run(world, end, str(folder), change))
    assert isinstance(said, str), said
    return said


def shuffle(rank: int, store: TCPStore) -> None:
    """Each trainer draws its own order: the counts are right, and samples are missing."""
    training.batches = lambda run, phase: toy.rank_local_shuffle(Schedule(phase.shard(run), phase.batch))


def test_a_proof_that_fails_ends_all_ranks(tmp_path: Path) -> None:
    assert end_of_all(4, tmp_path, shuffle).startswith("3 train epoch 1 is not proved: of 100 samples")


def test_the_answer_is_learnt() -> None:
    """In 100 epochs, as the task is run by default; that ranks compute the same the other tests show."""
    _, losses, correct = in_one_process(Options(), trainers=2)
    assert losses[0] > 2
    assert losses[-1] < 0.03
    assert correct > 970  # of 1000 that were never seen


def test_a_batch_of_a_trainer_has_20_to_50_indices_and_an_epoch_10_of_them() -> None:
    train, _ = TASK.load(None, Path())
    run = Run(run="", attempt=0, pod="", task="", plan={}, rank=1, world=2, seed=0, data="")
    for epoch in range(1, 101):
        phase = Phase(name="train", epoch=epoch, n=len(train), batch=10, contract="exact", order="feistel-1")
        sizes = [int((train.inputs[indices] >= 0).sum()) for indices in batches(run, phase)]
        assert len(sizes) == 10
        assert min(sizes) >= 20
        assert max(sizes) <= 50


def unlike(rank: int, store: TCPStore) -> None:
    """Rank 3 finds a GPU that rank 2 has not."""
    training.device.choose = lambda device, local_rank: torch.device("cuda" if rank == 3 else "cpu")


def test_what_cannot_be_trained_is_refused_on_all_ranks(tmp_path: Path) -> None:
    assert re.match(r"2 rank 3 .*has device cuda and rank 2", end_of_all(4, tmp_path, unlike))
    few = "WORLD_SIZE=2 must be at least 3: one process coordinates, one is the parameter server, and others train"
    assert end_of_all(2, tmp_path) == f"2 rank 0 (pod-0): {few}"


def test_options_that_make_no_sense_here_are_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", ".", "--contract", "exact", "--all-reduce", "bfloat16", "--save-seconds", "1"]
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run", "parameter-server", *options])
    assert f"unrecognized arguments: {' '.join(options)}" in capsys.readouterr().err


def test_the_interface_is_the_one_that_leads_to_the_job() -> None:
    assert network_interface.route_to("127.0.0.1", 29500) == "lo"
    assert network_interface.route_to("no-such-host.invalid", 29500) is None
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family.name == "AF_INET" and psutil.net_if_stats()[name].isup:
                assert network_interface.route_to(each.address, 29500) == name


# Whole jobs.


@pytest.fixture
def job(tmp_path: Path) -> Iterator[launched.Job]:
    with launched.job(launched.environment(TORCHTALLY_OUTPUT=str(tmp_path / "out")), tmp_path, 4) as own:
        yield own


def test_a_coordinator_that_starts_last_is_waited_for_and_the_run_is_proved(job: launched.Job, tmp_path: Path) -> None:
    command = ["run", "parameter-server", "--epochs", "3"]
    workers = [job.start(rank, command) for rank in (1, 2, 3)]
    launched.until("a word about the master", lambda: "does not answer" in workers[0].errors)
    pods = [job.start(0, command), *workers]
    outputs = [pod.rest() for pod in pods]
    assert [pod.process.returncode for pod in pods] == [0] * 4, [pod.errors for pod in pods]
    for pod, output in zip(pods, outputs, strict=True):
        clean_log.assert_clean(output + pod.errors)

    judged = verified("-", "".join(outputs))
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "2 ranks, train 3 epochs, test 3 epochs, model sha256:" in judged.stdout
    named = [f"demo-worker-{number}" in judged.stdout for number in range(3)]
    assert named == [False, True, True]  # those that train

    # The master's success is the job's: its log has the table, and its folder what came of it.
    assert "train      1  all                  2       100       100     0        0  ✓ every sample" in outputs[0]
    assert "30 steps by rpc in " in pods[0].errors
    proof = tmp_path / "out" / "proof.json"
    assert proofs.predicate(proof).holds
    assert verified(proof).stdout == judged.stdout
    model = Model()
    model.load_state_dict(torch.load(tmp_path / "out" / "model.pt", weights_only=True))
    wanted, losses, _ = in_one_process(Options(epochs=3), trainers=2)
    assert_same({name: value.tolist() for name, value in model.state_dict().items()}, wanted)
    assert [epoch["loss"] for epoch in proofs.predicate(proof).epochs] == pytest.approx(losses)


@pytest.mark.parametrize("lost", [1, 3])
def test_a_rank_that_dies_is_named_by_all_pods_which_end_to_be_retried(lost: int, job: launched.Job) -> None:
    """The server, and one that trains."""
    pods = job.all(["run", "parameter-server", "--epochs", "100000"])
    epoch = 0
    while epoch < 2:
        line = pods[0].line()
        assert line, pods[0].errors
        for record in events.in_lines([line]):
            epoch = record.event.epoch if isinstance(record.event, events.Epoch) else epoch
    (rank,) = (each for each in launched.family(pods[lost].process.pid) if each.name().startswith("rank "))
    rank.kill()
    codes = [pod.wait() for pod in pods]
    assert codes == [137 if number == lost else 203 for number in range(4)], [pod.errors for pod in pods]
    for pod in pods:
        assert f"rank {lost} (demo-worker-{lost - 1}) was ended by signal 9 (SIGKILL)" in pod.message
        assert "Traceback" not in pod.errors
    if lost == 1:
        assert "the parameter server, rank 1 (demo-worker-0), went away" in pods[2].errors + pods[3].errors


def test_a_server_that_goes_away_during_an_evaluation_is_named() -> None:
    gone = RuntimeError("ECONNRESET: connection reset by peer (this error originated at tensorpipe/transport)")
    table = RemoteTable.__new__(RemoteTable)
    table._table = Mock(rpc_sync=Mock(side_effect=gone))
    with pytest.raises(Lost, match="the parameter server, rank 1, went away or did not answer: ECONNRESET"):
        table.look_up(torch.tensor([1]), torch.tensor([0]))


def on_a_network(rank: int, store: TCPStore) -> None:
    """The ranks know the store by an address that is not of loopback alone."""
    training.store_address = lambda: ("demo-master-0", store.port)


@pytest.mark.parametrize(
    ("trusted", "said"),
    [
        (None, "whoever reaches a pod's ports can run code there: set TORCHTALLY_TRUSTED_NETWORK=true"),
        ("yes", "TORCHTALLY_TRUSTED_NETWORK='yes' must be true or false"),
        ("true", "trained"),
    ],
)
def test_rpc_on_a_network_asks_whether_it_is_trusted(
    trusted: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trusted:
        monkeypatch.setenv("TORCHTALLY_TRUSTED_NETWORK", trusted)
    assert said in end_of_all(3, tmp_path, on_a_network)
