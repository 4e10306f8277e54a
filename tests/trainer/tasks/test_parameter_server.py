"""The parameter server's task: the arithmetic of one process, in both forms; whole runs; and faults."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clean_log
import launched
import proofs
import psutil
import pytest
import ranks
import torch
from called import verified
from torch.distributed import TCPStore
from torch.nn import functional

from torchtally import cli, events
from torchtally.accounting.order.schedule import Schedule
from torchtally.errors import Ending
from torchtally.pod import network_interface
from torchtally.proof.shards import Shard
from torchtally.tasks.parameter_server import training
from torchtally.tasks.parameter_server.options import Options
from torchtally.tasks.parameter_server.task import TASK

Weights = dict[str, list[Any]]


def trained(rank: int, world: int, store: TCPStore, options: Options, output: str) -> dict[str, Any] | None:
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
    training.fit("parameter-server", options, Path(output))
    if rank:
        return None
    proof = proofs.predicate(Path(output, "proof.json"))
    assert proof.holds
    return {
        "weights": weights_in(Path(output)),
        "losses": [epoch["loss"] for epoch in proof.epochs],
        "correct": [epoch["correct"] for epoch in proof.epochs],
    }


def weights_in(output: Path) -> Weights:
    found = torch.load(output / "model.pt", weights_only=True)
    return {name: value.tolist() for name, value in found.items()}


def together(world: int, options: Options, folder: Path) -> dict[str, Any]:
    """What a training over so many ranks comes to."""
    found = ranks.run(world, trained, options, str(folder))
    for each in found:
        if isinstance(each, Exception):
            raise each
    first: dict[str, Any] = found[0]
    return first


def batches(epoch: int, n: int, batch: int, rank: int = 0, world: int = 1) -> Iterator[torch.Tensor]:
    """The indices of each step of a rank in an epoch of training."""
    shard = Shard(n=n, rank=rank, world=world, epoch=epoch, order="feistel-1")
    return map(torch.from_numpy, Schedule(shard, batch).arrays())


def in_one_process(options: Options, trainers: int) -> tuple[Weights, list[float], int]:
    """Plain PyTorch, on the whole batch of each step: the weights, the epochs' losses, and what is right at last."""
    train, test = TASK.load(None, Path())
    model = TASK.model(options)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    losses = []
    for epoch in range(1, options.epochs + 1):
        total = 0.0
        for indices in batches(epoch, len(train), options.batch_size * trainers):
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


@pytest.mark.parametrize("world", [1, 3])
def test_both_forms_give_the_same_and_what_one_process_gives(world: int, tmp_path: Path) -> None:
    """2 epochs; of 3 ranks, of 5 steps, the last of them uneven."""
    forms = (Options(epochs=2, batch_size=7, lr=0.5, form=form) for form in ("rpc", "collective"))
    rpc, collective = (together(world, options, tmp_path / options.form) for options in forms)
    assert_same(rpc["weights"], collective["weights"])
    wanted, losses, correct = in_one_process(Options(epochs=2, batch_size=7, lr=0.5), trainers=world)
    for name, value in TASK.model(Options()).state_dict().items():  # both parts have learnt something that would show
        assert (torch.tensor(wanted[name]) - value).abs().max() > 1e-3
    assert_same(rpc["weights"], wanted)
    assert rpc["losses"] == pytest.approx(losses)
    assert rpc["correct"][-1] == collective["correct"][-1] == correct


def test_a_run_by_rpc_repeats_bit_for_bit(tmp_path: Path) -> None:
    """Whatever the order in which the ranks' gradients arrive."""
    first, second = (together(4, Options(epochs=2), tmp_path / name) for name in ("first", "second"))
    assert first["weights"] == second["weights"]


def test_the_answer_is_learnt() -> None:
    """In 100 epochs, as the task is run by default; that ranks compute the same the other tests show."""
    _, losses, correct = in_one_process(Options(), trainers=2)
    assert losses[0] > 2
    assert losses[-1] < 0.03
    assert correct > 970  # of 1000 that were never seen


def test_a_batch_of_a_trainer_has_20_to_50_indices_and_an_epoch_10_of_them() -> None:
    train, _ = TASK.load(None, Path())
    for epoch in range(1, 101):
        sizes = [int((train.inputs[indices] >= 0).sum()) for indices in batches(epoch, len(train), 10, rank=1, world=2)]
        assert len(sizes) == 10
        assert min(sizes) >= 20
        assert max(sizes) <= 50


def test_options_that_make_no_sense_here_are_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", ".", "--contract", "exact", "--all-reduce", "bfloat16", "--save-seconds", "1"]
    assert cli.main(["run", "parameter-server", *options]) == 2
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
    with launched.job(launched.environment(TORCHTALLY_OUTPUT=str(tmp_path / "out")), tmp_path, 3) as own:
        yield own


def test_a_master_that_starts_last_is_waited_for_and_the_run_is_proved(job: launched.Job, tmp_path: Path) -> None:
    command = ["run", "parameter-server", "--epochs", "3"]
    workers = [job.start(rank, command) for rank in (1, 2)]
    launched.until("a word about the master", lambda: "does not answer" in workers[0].errors)
    pods = [job.start(0, command), *workers]
    outputs = [pod.rest() for pod in pods]
    assert [pod.process.returncode for pod in pods] == [0] * 3, [pod.errors for pod in pods]
    for pod, output in zip(pods, outputs, strict=True):
        clean_log.assert_clean(output + pod.errors)

    judged = verified("-", log="".join(outputs))
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "3 ranks, train 3 epochs, test 3 epochs, model sha256:" in judged.stdout

    # The master's success is the job's: its log has the table, and its folder what came of it.
    assert "train      1  all                  3       100       100     0           0  ✓ every sample" in outputs[0]
    proof = tmp_path / "out" / "proof.json"
    assert proofs.predicate(proof).holds
    assert verified(proof).stdout == judged.stdout
    wanted, losses, _ = in_one_process(Options(epochs=3), trainers=3)
    assert_same(weights_in(tmp_path / "out"), wanted)
    assert [epoch["loss"] for epoch in proofs.predicate(proof).epochs] == pytest.approx(losses)


@pytest.mark.parametrize("lost", [0, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_rank_that_dies_is_named_by_all_pods_which_end_to_be_retried(lost: int, job: launched.Job) -> None:
    """The server, and another one."""
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
    assert codes == [137 if number == lost else 203 for number in range(3)], [pod.errors for pod in pods]
    name = f"demo-worker-{lost - 1}" if lost else "demo-master-0"
    for pod in pods:
        assert f"rank {lost} ({name}) was ended by signal 9 (SIGKILL)" in pod.message
        assert "Traceback" not in pod.errors


def end_on_a_network(rank: int, world: int, store: TCPStore, output: str) -> str:
    """How a training ends whose ranks know the store by an address that is not of loopback alone."""
    training.store_address = lambda: ("demo-master-0", store.port)
    try:
        trained(rank, world, store, Options(epochs=1), output)
    except Ending as ending:
        return f"{ending.code} {ending}"
    return "trained"


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
    (found,) = set(ranks.run(2, end_on_a_network, str(tmp_path)))
    assert said in str(found)
