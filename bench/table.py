"""The table of a file of results, as Markdown."""

from collections.abc import Mapping

from bench.limit import limit
from bench.markdown import markdown, number, shown
from bench.results import Results, Series
from bench.spread import ratios, spread

TOOLS = {"torchtally": "torchtally", "blog": "the blog's loop", "accelerate": "Accelerate", "lightning": "Lightning"}


def text(results: Results) -> str:
    """The whole table."""
    return "\n".join(
        [
            *(_throughput(results)),
            "",
            *(_first_step(results)),
            "",
            *(_rest(results)),
            "",
            conditions(results),
        ]
    )


def conditions(results: Results) -> str:
    """The conditions of the measurements, in one line."""
    machine, versions = results.machine, results.versions
    loads = [load for each in results.series for load in each.loads]
    rounds = len({number for each in results.series for number in each.rounds})
    gpu = f"{machine['gpu']} ({machine['gpu_memory_gb']} GB), " if "gpu" in machine else ""
    return (
        f"Medians of up to {rounds} rounds, with the minimum and the maximum in brackets; a ratio compares values of "
        "the same round. "
        f"{gpu}{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}; "
        f"load average {min(loads):.1f} to {max(loads):.1f}; commit {results.commit}, {results.began}."
    )


def _throughput(results: Results) -> list[str]:
    header = ["task", "ranks", *TOOLS.values(), "n", "over the blog's loop", "over the best peer", "of the limit"]
    rows = []
    for ours in results.of("throughput", tool="torchtally"):
        case = {name: value for name, value in ours.case.items() if name != "tool"}
        known = peers(results, case)
        every = [ours, *(known.get(tool) for tool in TOOLS if tool != "torchtally")]
        cells = [shown(spread(each.values)) if each else "–" for each in every]
        beside = [_ratio(ours, known.get("blog")), _ratio(ours, known[best(known)])] if known else ["–", "–"]
        named = [str(case["task"]), str(case["world"])]
        rows.append([*named, *cells, str(len(ours.values)), *beside, _of_limit(results, ours)])
    return [
        "Samples per second of all ranks together, with a batch of 32 and one thread for each rank. Of gpt, tokens per "
        "second, with a batch of 8 windows of 64 tokens:",
        "",
        *markdown(header, rows),
    ]


def peers(results: Results, case: Mapping[str, str | int]) -> dict[str, Series]:
    """The throughput of the other tools in this case, if measured."""
    found = {tool: results.one("throughput", **case, tool=tool) for tool in TOOLS if tool != "torchtally"}
    return {tool: series for tool, series in found.items() if series}


def best(known: Mapping[str, Series]) -> str:
    """The fastest of `peers`."""
    return max(known, key=lambda tool: spread(known[tool].values).median)


def _ratio(ours: Series, other: Series | None) -> str:
    return shown(spread(ratios(ours.by_round, other.by_round)), "×") if other else "–"


def _of_limit(results: Results, ours: Series) -> str:
    most = limit(results, str(ours.case["task"]), int(ours.case["world"]))
    return f"{100 * spread(ours.values).median / most:.0f}% of {number(most)}" if most else "–"


def _first_step(results: Results) -> list[str]:
    header = ["task", "ranks", *TOOLS.values(), "n"]
    rows = []
    for ours in results.of("first step", tool="torchtally"):
        case = {name: value for name, value in ours.case.items() if name != "tool"}
        every = [results.one("first step", **case, tool=tool) for tool in TOOLS]
        cells = [shown(spread(each.values)) if each else "–" for each in every]
        rows.append([str(case["task"]), str(case["world"]), *cells, str(len(ours.values))])
    return ["Seconds from the command to the first step:", "", *markdown(header, rows)]


def _rest(results: Results) -> list[str]:
    rows = []
    for each in results.series:
        if each.measure not in ("throughput", "first step"):
            what = ", ".join(f"{value:,}" if isinstance(value, int) else value for value in each.case.values())
            rows.append([each.measure, what, shown(spread(each.values)), each.unit, str(len(each.values))])
    return markdown(["measure", "of", "median", "unit", "n"], rows, left=(0, 1, 3))
