"""The table of the project's goals: a row for each, from a file of results."""

from collections.abc import Iterator, Mapping

import numpy as np

from bench import goals_gpu
from bench.limit import limit
from bench.markdown import mark, markdown, number, shown
from bench.measure import weighed
from bench.measure.throughput import TASKS
from bench.results import Results, Series
from bench.spread import ratios, spread
from bench.tools import TOOLS, best, peers

# Throughput relative to the blog's loop, to the best peer, and to the limit, by task and number of ranks.
_FASTER: dict[str, dict[int, dict[str, float]]] = {
    "fashion-mnist": {1: {"limit": 0.85}, 2: {"blog": 2.5, "best": 2.0}, 4: {"blog": 2.5, "best": 2.0}},
    "mnist-cnn": {1: {"blog": 4.0, "best": 3.0}, 2: {"blog": 2.5, "best": 2.0}, 4: {"best": 2.5}},
    "keras-mnist": {world: {"blog": 1.5} for world in (1, 2, 4)},
}
_TARGETS = {"blog": "{:g}× the blog's loop", "best": "{:g}× the best peer", "limit": "{:.0%} of the limit"}
_MODELS = {"gpt-ddp": ("gpt with DDP", 1.0, "the best peer"), **goals_gpu.MODELS}
_LARGE = (10**9, 10**12)
_PODS = 1000
_MORE_PODS = 10_000  # not measured
_SAMPLERS = {"torchtally": "torchtally", "torch": "DistributedSampler", "streaming": "mosaicml-streaming"}


def text(results: Results, on_gpu: Results | None = None) -> str:
    """The goals as a Markdown table; those of a GPU from its own results."""
    parts = (_overhead, _weighed, _observed, _saves, _recovery, _sampler, _loading, _verifier, _start, _meeting)
    rows = [*_throughput(results), *_models(results), *goals_gpu.rows(on_gpu)]
    rows += [row for part in parts for row in part(results)]
    return "\n".join(markdown(goals_gpu.HEADER, rows, left=(0, 1)))


def _throughput(results: Results) -> Iterator[list[str]]:
    for task, by_world in _FASTER.items():
        for world, targets in by_world.items():
            ours = results.one("throughput", task=task, world=world, tool="torchtally")
            known = peers(results, {"task": task, "world": world})
            if not ours or "blog" not in known:
                continue
            first, complete = best(known), "best" not in targets or _all_known(task, known)
            times = {tool: spread(ratios(ours.by_round, known[tool].by_round)) for tool in ("blog", first)}
            found = {"blog": times["blog"].median, "best": times[first].median}
            compared = [f"the blog's loop {_median(known['blog'])}: {shown(times['blog'], '×')}"]
            if first != "blog":
                compared.append(f"best peer {TOOLS[first]} {_median(known[first])}: {shown(times[first], '×')}")
            if most := limit(results, task, world):
                found["limit"] = spread(ours.values).median / most
            yield [
                f"{task}, {_ranks(world)}, samples/s",
                ", ".join(_TARGETS[name].format(value) for name, value in targets.items()),
                shown(spread(ours.values)),
                ", ".join(compared),
                f"{number(most)} ({100 * found['limit']:.0f}%)" if most else "–",
                mark(complete and all(found.get(name, 0.0) >= value for name, value in targets.items())),
            ]


def _models(results: Results) -> Iterator[list[str]]:
    for task, (name, least, target) in _MODELS.items():
        for ours in results.of("throughput", task=task, tool="torchtally"):
            world = int(ours.case["world"])
            if not (known := peers(results, {"task": task, "world": world})):
                continue
            other = best(known)
            times = spread(ratios(ours.by_round, known[other].by_round))
            most = limit(results, task, world)
            yield [
                f"{name}, {_ranks(world)}, {ours.unit}",
                target,
                f"{shown(spread(ours.values))}: {shown(times, '×')}",
                f"best peer {TOOLS[other]} {shown(spread(known[other].values))}",
                f"{number(most)} ({100 * spread(ours.values).median / most:.0f}%)" if most else "–",
                mark(_all_known(task, known) and times.median >= least),
            ]


def _all_known(task: str, known: Mapping[str, Series]) -> bool:
    """Whether each peer was measured: one that was not may be faster than the best that was."""
    return known.keys() >= {*TASKS[task].tools} - {"torchtally"}


def _overhead(results: Results) -> Iterator[list[str]]:
    for series in results.of("overhead", what="proof"):
        world, of = int(series.case["world"]), f" of {series.case['task']}" if "task" in series.case else ""
        yield _at_most(f"the proof{of}, {_ranks(world)}, % of the training", series, 1.0)


def _weighed(results: Results) -> Iterator[list[str]]:
    for task, most in weighed.GOALS.items():
        for series in results.of(weighed.MEASURE, task=task):
            yield _at_most(f"an account's loader, optimizer, and weigh in a loop, % of a step of {task}", series, most)


def _observed(results: Results) -> Iterator[list[str]]:
    for series in results.of("observed"):
        goal = f"an observation, {series.case['workers']} workers, % of a step of 1.5 ms"
        yield _at_most(goal, series, 1.0)


def _saves(results: Results) -> Iterator[list[str]]:
    for series in results.of("save", what="held, and the CPU time of writing"):
        world = int(series.case["world"])
        yield _at_most(f"a save a minute of a GPT with FSDP2, {_ranks(world)}, at most, %", series, 1.0)
    for series in results.of("first step of a GPT", start="resumed"):
        world = int(series.case["world"])
        if cold := results.one("first step of a GPT", start="cold", world=world):
            goal = f"from the command to the first step after a checkpoint, GPT with FSDP2, {_ranks(world)}, s"
            yield _times_at_most(goal, 1.2, "a cold start", series, cold)


def _recovery(results: Results) -> Iterator[list[str]]:
    in_place, containers = (results.one("recovery", again=again) for again in ("in place", "containers"))
    if in_place and containers:
        goal = f"4 pods go on in place after kill -9 of {in_place.case['killed']}, s"
        yield _times_at_most(goal, 0.5, "a start of their containers", in_place, containers)


def _sampler(results: Results) -> Iterator[list[str]]:
    others = {name: results.one("sampler, indices", tool=tool, n=10**7) for tool, name in _SAMPLERS.items()}
    compared = ", ".join(f"{name} at 10⁷: {_median(series)}" for name, series in others.items() if series) or "–"
    for n in _LARGE:
        if series := results.one("sampler, first index", tool="torchtally", n=n):
            yield _at_most(f"first index of {_power(n)}, ms", series, 1.0)
        if series := results.one("sampler, indices", tool="torchtally", n=n):
            found = spread(series.values)
            yield [
                f"indices of {_power(n)}, as arrays, million/s a core",
                "50",
                shown(found),
                compared,
                "–",
                mark(found.median >= 50),
            ]


def _loading(results: Results) -> Iterator[list[str]]:
    for series in results.of("loading, of an untallied DataLoader"):
        case, found = series.case, spread(series.values)
        plain = results.one("loading", **case, tool="torch")
        yield [
            f"loading {case['fetched']}, batch {case['batch']}, {case['workers']} workers, % of an untallied one",
            "at least 95",
            shown(found),
            f"{_median(plain)} samples/s" if plain else "–",
            "–",
            mark(found.median >= 95),
        ]


def _verifier(results: Results) -> Iterator[list[str]]:
    for measure, what, unit, most in (
        ("verifier", "verifier, 10⁹ samples × 10 epochs", "s", {10_000: 5.0, 100_000: 30.0}),
        ("verifier, peak memory", "verifier's memory", "MB", {10_000: 200.0, 100_000: 400.0}),
    ):
        for series in results.of(measure):
            ranks = int(series.case.get("ranks", 10_000))  # earlier results have no other
            yield _at_most(f"{what}, {ranks:,} ranks, {series.case['logs']}, {unit}", series, most[ranks])


def _start(results: Results) -> Iterator[list[str]]:
    ours = results.one("first step", task="fashion-mnist", world=1, tool="torchtally")
    bare = results.one("start", what="import torch, make an optimizer")
    if ours and bare:
        goal = "from the command to the first step, one rank, s"
        yield _times_at_most(goal, 1.3, "an import of torch and an optimizer", ours, bare)
    if asked := results.one("start", what="torchtally --help"):
        yield _at_most("`torchtally --help`, s", asked, 0.15)


def _meeting(results: Results) -> Iterator[list[str]]:
    whats = {"from the last pod's arrival until all know": "meet after the last one's arrival"}
    whats["until all know a failure's cause"] = "learn the cause of a failure"
    for what, goal in whats.items():
        if series := results.one("meeting", what=what, pods=_PODS):
            yield _at_most(f"{_PODS} pods {goal}, s", series, 10.0)
    loads, shares = (results.of(measure, what="heartbeats") for measure in ("store", "store, CPU"))
    if len(loads) < 2 or len(shares) < 2:
        return
    by_pods = {int(each.case["pods"]): each for each in loads}
    each_pod = {pods: spread(series.values).median / pods for pods, series in by_pods.items()}
    growth = each_pod[max(each_pod)] / each_pod[min(each_pod)]
    yield [
        f"heartbeats, requests/s of {max(by_pods)} pods",
        f"linear: at most 1.1× a pod's share of {min(by_pods)} pods",
        f"{shown(spread(by_pods[max(by_pods)].values))}: {number(growth)}×",
        "–",
        "–",
        mark(growth <= 1.1),
    ]
    share = _extrapolated({int(each.case["pods"]): spread(each.values).median for each in shares}, 1)
    goal = f"heartbeats of {_MORE_PODS:,} pods by a linear fit, % of pod 0's core"
    yield [goal, "at most 100", number(share), "–", "–", mark(share <= 100)]
    # Each pod is sent the names of all.
    cpu = {int(each.case["pods"]): spread(each.values).median / 1000 for each in results.of("meeting, store's CPU")}
    if len(cpu) > 2:
        seconds = _extrapolated(cpu, 2)
        goal = f"the meeting of {_MORE_PODS:,} pods by a quadratic fit, s of pod 0's core"
        yield [goal, "at most 10", number(seconds), "–", "–", mark(seconds <= 10)]


def _extrapolated(by_pods: Mapping[int, float], degree: int) -> float:
    """The value for `_MORE_PODS` of the polynomial that fits best."""
    return float(np.polyval(np.polyfit(list(by_pods), list(by_pods.values()), degree), _MORE_PODS))


def _at_most(goal: str, series: Series, most: float) -> list[str]:
    found = spread(series.values)
    return [goal, f"at most {most:g}", shown(found), "–", "–", mark(found.median <= most)]


def _times_at_most(goal: str, most: float, name: str, series: Series, other: Series) -> list[str]:
    times = spread(ratios(series.by_round, other.by_round))
    return [
        goal,
        f"at most {most:g}× {name}",
        f"{shown(spread(series.values))}: {shown(times, '×')}",
        f"{name} {shown(spread(other.values))}",
        "–",
        mark(times.median <= most),
    ]


def _ranks(world: int) -> str:
    return f"{world} rank{'s' * (world > 1)}"


def _median(series: Series) -> str:
    return number(spread(series.values).median)


def _power(n: int) -> str:
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(len(str(n)) - 1))
