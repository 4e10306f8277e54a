"""The table's section on scaling: over ranks, with a model of a step's cost, and over pods and jobs."""

import math
from collections.abc import Iterator
from dataclasses import replace

from bench import model
from bench.markdown import markdown, number, shown
from bench.model import BATCH, GRADIENT, HELD_OUT, KINDS, Cost, Network
from bench.results import Results, Series
from bench.spread import ratios, spread

MEASURES = ("scaling", "all-reduce", "many")
FAR = (8, 64, 1024)
# Assumed, not measured: 50 µs a message, 10 Gbit/s.
_STATED = (50e-6, 8 / 10e9)
_FORMS = {"log2 w": model.tree, "2 (w - 1), a ring's": model.ring}


def lines(results: Results) -> list[str]:
    """The section's lines, with a blank line after each part; empty if nothing of it was measured."""
    parts = [_ranks(results), _model(results), _many(results)]
    return [line for part in parts if part for line in (*part, "")]


def _ranks(results: Results) -> list[str]:
    if not results.of("scaling"):
        return []
    cores = int(results.machine["cores"])
    header = ["ranks"]
    for kind in KINDS:
        header += [f"{kind}, samples/s", "efficiency by ranks", "efficiency by cores"]
    rows = []
    for world in model.WORLDS:
        rows.append([str(world)])
        for kind in KINDS:
            rows[-1] += _speed(model.speeds(results, kind, 1), model.speeds(results, kind, world), world, cores)
    return [
        f"Fashion-MNIST with 1 to 8 ranks of one pod on {cores} cores: weak scaling with {BATCH} samples per rank "
        f"and step, strong scaling with {model.GLOBAL_BATCH} samples in a step of all ranks. The efficiency by ranks "
        "compares the speed with that of one rank times the number of ranks. The efficiency by cores compares it with "
        "that of one rank times the number of cores that the ranks can use:",
        "",
        *markdown(header, rows),
    ]


def _speed(one: Series | None, many: Series | None, world: int, cores: int) -> list[str]:
    if not many:
        return ["–"] * 3
    gains = ratios(many.by_round, one.by_round) if one else []
    cells = [
        shown(spread([100 * gain / shares for gain in gains]), "%") if gains else "–"
        for shares in (world, min(world, cores))
    ]
    return [shown(spread(many.values)), *cells]


def _model(results: Results) -> list[str]:
    """The fitted model, its check, and its extrapolation to more ranks."""
    cores = int(results.machine["cores"])
    steps, alone = model.steps(results), model.all_reduces(results)
    # Four unknowns of a step, two of an all-reduce.
    if len({each.world for each in steps} - {HELD_OUT}) < 4 or len({each.size for each in alone}) < 2:
        return []
    cost = model.fit(steps, cores, model.tree)
    networks = {name: model.fit_network(alone, cores, form) for name, form in _FORMS.items()}
    held = [
        _held_out(f"a step of {each.kind} scaling", cost.seconds(each.world, each.rows, cores), each.seconds)
        for each in steps
        if each.world == HELD_OUT
    ]
    held += [
        _held_out(f"an all-reduce by {name}", network.seconds(HELD_OUT, cores), each.seconds)
        for name, network in networks.items()
        for each in alone
        if (each.world, each.size) == (HELD_OUT, GRADIENT)
    ]
    return [
        f"A step of w ranks with r samples each takes ({number(1e6 * cost.step)} µs + {number(1e6 * cost.row)} µs × r) "
        f"× max(1, w / {cores}) + {_of_network('log2 w', cost.network)}, where bytes are those that a core moves for "
        f"its ranks (2 (w - 1) / w of the gradient for each). gloo's all-reduce alone, between pods over loopback: "
        + ", or ".join(_of_network(name, network) for name, network in networks.items())
        + f". The fit takes the medians of all but {HELD_OUT} ranks, without negative terms. "
        f"Predictions for {HELD_OUT} ranks: {'; '.join(held)}.",
        "",
        f"Efficiency of weak scaling with {BATCH} samples per rank and step, extrapolated by this model:",
        "",
        *_far(cost, networks),
        "",
        "The extrapolation assumes a pod for each rank and a core for each pod, as fast as a core here. It assumes "
        "that the backward pass hides no part of an all-reduce, that DDP takes no time, that no pod is slower than "
        "another, and that the network carries all pairs at once. gloo's default is the ring. The latency and the time "
        "per byte of loopback come from the fit: the latency includes waits for a core, and the time per byte is work "
        "of a core, because there is no wire. The other network is an assumption and was not measured.",
    ]


def _held_out(what: str, predicted: float, measured: float) -> str:
    error = predicted / measured - 1
    return f"{what}, {number(1e3 * predicted)} ms predicted, {number(1e3 * measured)} ms measured ({error:+.0%})"


def _of_network(messages: str, network: Network) -> str:
    return f"{number(1e6 * network.alpha)} µs × {messages} + {number(1e9 * network.beta)} ns × bytes"


def _far(cost: Cost, networks: dict[str, Network]) -> list[str]:
    last = FAR[-1]
    header = [
        "network",
        "messages",
        *(f"{world:,} ranks" for world in FAR),
        f"samples per rank for 90% at {last:,} ranks",
    ]
    rows = []
    for messages, network in networks.items():
        alpha, beta = _STATED
        for name, used in {
            "loopback's": network,
            "50 µs, 10 Gbit/s": replace(network, alpha=alpha, beta=beta),
        }.items():
            there = replace(cost, network=used)
            needed = there.rows_for(0.9, last)
            cells = [f"{number(100 * there.efficiency(world, BATCH))}%" for world in FAR]
            rows.append([name, messages, *cells, f"{math.ceil(needed):,}" if math.isfinite(needed) else "–"])
    return markdown(header, rows, left=(0, 1))


def _many(results: Results) -> list[str]:
    """Growth with N, as the exponent x of seconds ~ Nˣ between the two largest N."""
    rows = list(_growths(results))
    if not rows:
        return []
    sizes = sorted({int(each.case["n"]) for each in results.of("many")})
    header = ["seconds of N", *(f"{n:,}" for n in sizes), f"x of Nˣ from {sizes[-2]:,} to {sizes[-1]:,}"]
    return [
        "Growth of time with the number of workers of the chart, and of PyTorchJobs (x = 1 is linear):",
        "",
        *markdown(header, rows),
    ]


def _growths(results: Results) -> Iterator[list[str]]:
    for what in dict.fromkeys(str(each.case["what"]) for each in results.of("many")):
        seconds = {int(each.case["n"]): spread(each.values) for each in results.of("many", what=what)}
        *_, less, most = sorted(seconds)
        x = math.log(seconds[most].median / seconds[less].median) / math.log(most / less)
        yield [what, *(shown(seconds[n]) for n in sorted(seconds)), f"{x:.2f}"]
