"""The model of a step's cost finds what its data was made of, and is not shown what it is checked on."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import model
from bench.model import GRADIENT, HELD_OUT, KINDS, WORLDS, AllReduce, Cost, Kind, Messages, Network, Step
from bench.results import Results
from bench.sample import Sample

forms = pytest.mark.parametrize("messages", [model.tree, model.ring])


def made_by(cost: Cost, cores: int) -> list[Step]:
    """The steps that cost exactly this."""
    empty = [Step(kind, world, 0.0) for kind in KINDS for world in WORLDS]
    return [replace(each, seconds=cost.seconds(each.world, each.rows, cores)) for each in empty]


def known(messages: Messages) -> Cost:
    return Cost(step=4e-4, row=2e-5, network=Network(alpha=8e-5, beta=3e-10, messages=messages))


@forms
@given(
    step=st.floats(1e-4, 1e-2),
    row=st.floats(1e-6, 1e-4),
    alpha=st.floats(1e-5, 1e-3),
    beta=st.floats(1e-11, 1e-9),
    cores=st.sampled_from([2, 4, 64]),
)
def test_what_a_step_costs_is_found(
    messages: Messages, step: float, row: float, alpha: float, beta: float, cores: int
) -> None:
    found = model.fit(
        made_by(Cost(step=step, row=row, network=Network(alpha=alpha, beta=beta, messages=messages)), cores),
        cores,
        messages,
    )
    assert (found.step, found.row) == (pytest.approx(step, rel=1e-3), pytest.approx(row, rel=1e-3))
    for world in (6, 8):
        assert found.network.seconds(world, cores) == pytest.approx(
            Network(alpha, beta, messages).seconds(world, cores), rel=1e-3
        )


def all_reduces(network: Network, cores: int) -> list[AllReduce]:
    return [
        AllReduce(world, size, network.seconds(world, cores, size)) for world in WORLDS[1:] for size in (4, GRADIENT)
    ]


@forms
def test_alpha_and_beta_are_told_apart_by_all_reduces_of_two_sizes(messages: Messages) -> None:
    network = known(messages).network
    found = model.fit_network(all_reduces(network, 2), 2, messages)
    assert (found.alpha, found.beta) == (pytest.approx(8e-5), pytest.approx(3e-10))


def test_what_is_held_out_is_not_fitted() -> None:
    cost = known(model.tree)
    steps, alone = made_by(cost, 2), all_reduces(cost.network, 2)
    false_steps = [replace(each, seconds=each.seconds * (100 if each.world == HELD_OUT else 1)) for each in steps]
    false_alone = [replace(each, seconds=each.seconds * (100 if each.world == HELD_OUT else 1)) for each in alone]
    assert model.fit(false_steps, 2, model.tree) == model.fit(steps, 2, model.tree)
    assert model.fit_network(false_alone, 2, model.tree) == model.fit_network(alone, 2, model.tree)


def test_nothing_costs_less_than_nothing() -> None:
    faster = [AllReduce(world, size, 1e-2 / world / size) for world in WORLDS[1:] for size in (4, GRADIENT)]
    network = model.fit_network(faster, 64, model.tree)
    assert network.alpha >= 0
    assert network.beta >= 0


def test_cores_that_are_shared_make_what_they_do_as_much_slower() -> None:
    cost = known(model.tree)
    both = [cost.seconds(8, 32, cores) - 3 * cost.network.alpha for cores in (8, 2)]
    assert both[1] == pytest.approx(4 * both[0])


@forms
def test_so_many_samples_a_rank_are_that_efficient(messages: Messages) -> None:
    cost = known(messages)
    assert cost.efficiency(1, 32) == 1
    assert cost.efficiency(1024, cost.rows_for(0.9, 1024)) == pytest.approx(0.9)
    assert cost.efficiency(1024, 32) < cost.efficiency(8, 32)


def test_a_ring_costs_many_ranks_what_a_tree_does_not() -> None:
    tree, ring = known(model.tree), known(model.ring)
    assert tree.seconds(2, 32, 2) < ring.seconds(2, 32, 2)
    assert ring.efficiency(1024, 32) < tree.efficiency(1024, 32) / 10


def test_a_step_is_its_samples_over_their_speed() -> None:
    found = Results(began="", seconds=0, commit="", machine={"cores": 2}, versions={})

    def add(measure: str, value: float, **case: str | int) -> None:
        found.add(Sample(measure=measure, case=case, unit="", better="higher", value=value), len(found.series), 0.5)

    add("throughput", 6400, task="fashion-mnist", tool="torchtally", world=2)
    add("throughput", 1, task="fashion-mnist", tool="blog", world=2)
    add("scaling", 12800, kind="strong", world=2)
    add("scaling", 9600, kind="weak", world=3)
    add("scaling", 5120, kind="strong", world=4)
    expected: list[tuple[Kind, int, float, float]] = [
        ("weak", 2, 32, 0.01),
        ("weak", 3, 32, 0.01),
        ("strong", 2, 128, 0.02),
        ("strong", 4, 64, 0.05),
    ]
    assert [(each.kind, each.world, each.rows, each.seconds) for each in model.steps(found)] == expected
