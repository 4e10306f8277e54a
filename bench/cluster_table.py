"""The table of a file of results of `make bench-cluster`, as Markdown: a row for each phase."""

from bench.markdown import markdown, shown
from bench.results import Results
from bench.spread import spread

MEASURE = "start on a cluster"
TOGETHER = "together"
_TOOLS = {"torchtally": "helm install", "blog": "by hand"}
Rounds = dict[int, float]


def text(results: Results) -> str:
    found = {tool: _phases(results, tool) for tool in _TOOLS}
    rows = []
    for phase in _rows(found):
        cells = [shown(spread(list(values.values()))) if (values := _of(found[tool], phase)) else "–" for tool in found]
        rows.append([phase, *cells])
    counts = {name: len(found[tool].get(TOGETHER, {})) for tool, name in _TOOLS.items()}
    loads = [load for each in results.series for load in each.loads]
    machine = results.machine
    return "\n".join(
        [
            "Seconds from the command to the first step, 1 master and 3 workers:",
            "",
            *markdown(["phase", *_TOOLS.values()], rows),
            "",
            "Medians, with the minimum and the maximum in brackets. + joins phases that the logs of one of the two "
            "jobs do not separate. The cluster's own times are whole seconds, so each value is ± 1 s. "
            f"{', '.join(f'{name} n = {count}' for name, count in counts.items())}; "
            f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; "
            f"{', '.join(f'{name} {version}' for name, version in results.versions.items())}; "
            f"load average {min(loads):.1f} to {max(loads):.1f}; commit {results.commit}, {results.began}.",
        ]
    )


def _phases(results: Results, tool: str) -> dict[str, Rounds]:
    return {str(each.case["phase"]): each.by_round for each in results.of(MEASURE, tool=tool)}


def _rows(found: dict[str, dict[str, Rounds]]) -> list[str]:
    """The phases of all tools: parts before the phases that contain them, and the total last."""
    names = {phase: None for phases in found.values() for phase in phases if phase != TOGETHER}
    return [*names, TOGETHER]


def _of(phases: dict[str, Rounds], name: str) -> Rounds:
    """A tool's phase by round, or the sum of its parts; empty if the tool has neither."""
    if name in phases:
        return phases[name]
    parts = [phase for phase in phases if set(phase.split("+")) <= set(name.split("+"))]
    if "+".join(parts) != name:
        return {}
    rounds = set.intersection(*(set(phases[part]) for part in parts))
    return {each: sum(phases[part][each] for part in parts) for each in sorted(rounds)}
