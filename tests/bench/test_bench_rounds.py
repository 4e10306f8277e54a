"""What a run of `make bench` measures, round by round."""

from collections import Counter

from bench.__main__ import ROUNDS, programs
from bench.limit import PARTS


def test_each_task_is_measured_beside_the_blogs_loop_in_two_rounds_at_least_and_nothing_twice_in_one() -> None:
    rounds = [[tuple(program) for program in programs(number + 1)] for number in range(ROUNDS)]
    assert all(len(set(each)) == len(each) for each in rounds)
    counts = Counter(program for each in rounds for program in each)
    for task in PARTS:
        for world in ("1", "2", "4"):
            assert counts["throughput", "torchtally", task, world] == counts["throughput", "blog", task, world] >= 2
