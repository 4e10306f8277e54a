"""The rows of the table of goals that a GPU is needed for, from a file of results of one."""

from collections.abc import Iterator

from bench.markdown import mark, markdown, number, shown
from bench.measure.gpu import TOOLS
from bench.measure.gpu_ranks import NOTE, WORLD
from bench.results import Results, Series
from bench.spread import ratios, spread
from bench.tools import TOOLS as NAMES
from bench.tools import best

HEADER = ["goal", "target", "torchtally", "compared with", "limit", "reached"]
FAILED, LEFT_OUT = "failed: ", "left out"  # how notes of a program begin
_NO_GPU = "not measured: no GPU"
# Throughput relative to the best peer, by task: on CPUs as on a GPU.
MODELS = {
    "gpt-fsdp2": ("gpt with FSDP2", 1.0, "the best peer"),
    "image-folder-64": ("image-folder, 64 × 64 pixels", 1.3, "1.3× the best peer"),
    "image-folder-224": ("image-folder, 224 × 224 pixels", 1.3, "1.3× the best peer"),
}
_MODELS = {"gpt": ("gpt, a custom loop", 1.0, "the best peer"), **MODELS}


def text(results: Results) -> str:
    """These rows alone, as a Markdown table. A rehearsal on CPUs reaches no goal of a GPU."""
    found = list(rows(results))
    if "gpu" not in results.machine:
        found = [[*row[:-1], "rehearsed"] for row in found]
    return "\n".join(markdown(HEADER, found, left=(0, 1)))


def rows(results: Results | None) -> Iterator[list[str]]:
    """The rows; without results, they say that there is no GPU."""
    for tool, target, least in (("blog", "20× the blog's loop", 20.0), ("by hand", "a loop by hand, less 1%", 0.99)):
        yield _throughput(results, "fashion-mnist", [tool], ["fashion-mnist, one GPU, samples/s", target], least)
    for task, (name, least, target) in _MODELS.items():
        unit = "tokens/s" if task.startswith("gpt") else "samples/s"
        others = [tool for tool in TOOLS[task] if tool != "torchtally"]
        yield _throughput(results, task, others, [f"{name}, bfloat16, one GPU, {unit}", target], least)
    yield _captured(results)
    yield _two_ranks(results)


def _throughput(results: Results | None, task: str, others: list[str], goal: list[str], least: float) -> list[str]:
    if results is None:
        return _none(goal, _NO_GPU)
    programs = {tool: f"gpu {tool} {task}" for tool in ("torchtally", *others)}
    found = {tool: results.one("throughput", task=task, world=1, tool=tool) for tool in programs}
    if not (ours := found["torchtally"]):
        return _none(goal, _why(results, programs["torchtally"]))
    known = {tool: each for tool in others if (each := found[tool]) and each.by_round.keys() & ours.by_round.keys()}
    if not known:
        return _none(goal, _why(results, programs[others[0]]), shown(spread(ours.values)))
    # One that has failed, or was not measured, may be faster than the best that is known.
    wrong = [
        f"{_name(tool)} {_why(results, program)}"
        for tool, program in programs.items()
        if not found[tool] or not results.notes.get(program, LEFT_OUT).startswith(LEFT_OUT)
    ]
    return _compared(goal, ours, known, least, wrong, complete=not wrong)


def _compared(
    goal: list[str], ours: Series, known: dict[str, Series], least: float, more: list[str], *, complete: bool
) -> list[str]:
    other = best(known)
    times = spread(ratios(ours.by_round, known[other].by_round))
    compared = "; ".join([f"{_name(other)} {shown(spread(known[other].values))}", *more])
    reached = mark(complete and times.median >= least)
    return [*goal, f"{shown(spread(ours.values))}: {shown(times, '×')}", compared, "–", reached]


def _captured(results: Results | None) -> list[str]:
    goal = ["fashion-mnist, steps in a CUDA graph, samples/s", "plain steps, to the bit, with and without dropout"]
    if results is None:
        return _none(goal, _NO_GPU)
    ours, plain = (results.one("captured step", what=what) for what in ("replayed", "plain"))
    if not (ours and plain):
        return _none(goal, _why(results, "gpu_exact captured"))
    programs = [f"gpu_exact {each}" for each in ("captured", "dropout")]
    notes = [f"{each} {_why(results, each)}" for each in programs if each in results.notes]
    times = number(spread(ratios(ours.by_round, plain.by_round)).median)
    compared = "; ".join([f"plain steps {shown(spread(plain.values))}", *notes])
    return [*goal, f"{shown(spread(ours.values))}: {times}×", compared, "–", mark(not notes)]


def _two_ranks(results: Results | None) -> list[str]:
    goal = [f"a small gpt with DDP, {WORLD} ranks on one GPU, tokens/s", "the loop without a tally, less 1%"]
    if results is None:
        return _none(goal, _NO_GPU)
    ours, blogs = (results.one("throughput", task="gpt-ddp", world=WORLD, tool=tool) for tool in ("torchtally", "blog"))
    if not (ours and blogs):
        return _none(goal, _why(results, "gpu_ranks"))
    more = [f"over {ours.case['backend']}", f"{NOTE}: {_cell(results.notes.get(NOTE, 'not tried'))}"]
    return _compared(goal, ours, {"blog": blogs}, 0.99, more, complete=True)


def _none(goal: list[str], why: str, ours: str = "") -> list[str]:
    return [*goal, f"{ours}: {why}" if ours else why, "–", "–", "–"]


def _why(results: Results, program: str) -> str:
    return _cell(results.notes.get(program, "not measured"))


def _name(tool: str) -> str:
    return NAMES.get(tool, tool)


def _cell(note: str) -> str:
    """A note that cannot end a cell of a table."""
    return note.replace("|", "\\|").replace("\n", " ")
