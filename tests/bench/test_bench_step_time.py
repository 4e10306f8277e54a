"""The cost of timing steps is measured in pairs; what it is depends on the machine."""

from bench.measure import step_time


def test_each_pair_has_a_pass_of_both_ways() -> None:
    found = step_time.measure(2, pairs=2)
    assert found.keys() == {"untimed", "timed", "alone", "further"}
    assert [len(values) for values in found.values()] == [2, 2, 2, 2]
    assert min(*found["untimed"], *found["timed"], *found["alone"]) > 0
