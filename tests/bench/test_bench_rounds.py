"""What a run of `make bench` measures, round by round."""

from collections import Counter

from bench.__main__ import ROUNDS, programs
from bench.measure import overhead
from bench.measure.throughput import TASKS


def test_each_goal_is_measured_in_three_rounds_at_least_and_nothing_twice_in_one() -> None:
    rounds = [[tuple(program) for program in programs(number + 1)] for number in range(ROUNDS)]
    assert all(len(set(each)) == len(each) for each in rounds)
    counts = Counter(program for each in rounds for program in each)
    compared: Counter[str] = Counter()  # by task and number of ranks
    for each in rounds:
        found = [case for name, *cases in each if name == "throughput" for case in cases]
        for task, _, world in (case.partition("/") for case in found):
            compared.update(f"{task}/{number}" for number in ([world] if world else TASKS[task].worlds))
    assert compared == {
        f"{task}/{world}": 4 if (task, world) == ("mnist-cnn", 4) else 3
        for task, each in TASKS.items()
        for world in each.worlds
    }
    of_goals = [("overhead", task) for task in overhead.TASKS]
    of_goals += [("limits",), ("startup",), ("saves", "2"), ("recovery", "once")]
    of_goals += [("verifier", "10000"), ("verifier", "100000")]
    of_goals += [("loading", "0", "2"), ("loading", "2", "2")]
    assert all(counts[program] >= 3 for program in of_goals)
    assert sum(program[0] == "meeting" and program[-1] == "1000" for each in rounds for program in each) == 3
