"""What a run of `make bench` measures, round by round."""

from collections import Counter

from bench.__main__ import ROUNDS, programs
from bench.measure import overhead, ranks
from bench.measure.throughput import STARTED, TASKS


def test_each_goal_is_measured_in_three_rounds_at_least_and_nothing_twice_in_one() -> None:
    rounds = [[tuple(program) for program in programs(number + 1)] for number in range(ROUNDS)]
    assert all(len(set(each)) == len(each) for each in rounds)
    counts = Counter(program for each in rounds for program in each)
    first = [("throughput", tool, STARTED, "1") for tool in TASKS[STARTED].tools]  # with their start
    first += [("throughput", STARTED, str(world)) for world in TASKS[STARTED].worlds[1:]]
    assert {counts[program] for program in first} == {1}
    assert counts["throughput", STARTED] >= 2
    of_goals = [("throughput", task) for task in TASKS if task != STARTED]
    of_goals += [("ranks", str(world)) for world in ranks.TIMED]
    of_goals += [("overhead", task) for task in overhead.TASKS]
    of_goals += [("limits",), ("startup",), ("saves", "2"), ("recovery", "once")]
    of_goals += [("verifier", "10000"), ("verifier", "100000"), ("meeting", "10", "100", "1000")]
    of_goals += [("loading", "0", "4"), ("loading", "2", "4")]
    assert all(counts[program] >= 3 for program in of_goals)
    assert {counts["throughput", tool, "mnist-cnn", "4"] for tool in TASKS["mnist-cnn"].tools} == {1}  # a fourth value
