"""The lost and duplicated samples of a digest in words: whole steps, samples of the shard, or single samples."""

from collections.abc import Iterator
from dataclasses import dataclass

from torchtally.proof.decoder import Stretch
from torchtally.proof.line import NAMED, TallyLine
from torchtally.proof.order import DRAWN
from torchtally.verifier import expected
from torchtally.verifier.phrasing import numbers, span


@dataclass(frozen=True)
class _Part:
    """Samples number `first` to `last` of a shard, consumed `times` more often than is right."""

    first: int
    last: int
    times: int


def describe(line: TallyLine, stretches: list[Stretch]) -> Iterator[str]:
    """`steps 20-21 (samples 640-703 of its shard) were consumed twice`, `sample 17 was never consumed`."""
    parts, foreign = _parts(line, stretches)
    single = []
    for part in parts:
        if text := _as_steps(line, part) or _as_samples(line, part):
            yield text
        else:
            each = range(part.first, part.last + 1)
            single += [(expected.position(line, number), part.times) for number in each]
    groups: dict[str, list[int]] = {}
    positions = [position for position, _ in single + foreign]
    for (position, times), index in zip(single + foreign, expected.samples(line, positions), strict=True):
        groups.setdefault(_how(line, position, times), []).append(index)
    for how, indices in groups.items():
        yield f"{numbers('sample', indices)} {'were' if len(indices) > 1 else 'was'} {how}"
    if line.outside:
        yield f"{line.outside} consumed {'indices are not samples' if line.outside > 1 else 'index is not a sample'}"


def describe_ranges(line: TallyLine, stretches: list[Stretch]) -> list[str]:
    """The parts of `describe` that are not single samples."""
    parts, _ = _parts(line, stretches)
    return [text for part in parts if (text := _as_steps(line, part) or _as_samples(line, part))]


def _parts(line: TallyLine, stretches: list[Stretch]) -> tuple[list[_Part], list[tuple[int, int]]]:
    """The stretches within the shard, neighbours joined, and (position, times) of samples outside of it."""
    parts: list[_Part] = []
    foreign = []
    for each in stretches:
        first = expected.number(line, each.positions.first)
        if first is None:  # a single position: the others are stretches of the shard
            foreign.append((each.positions.first, each.times))
        else:
            parts.append(_Part(first, first + each.positions.count - 1, each.times))
    joined: list[_Part] = []
    for part in sorted(parts, key=lambda part: part.first):
        if joined and (joined[-1].last + 1, joined[-1].times) == (part.first, part.times):
            part = _Part(joined.pop().first, part.last, part.times)
        joined.append(part)
    return joined, foreign


def _as_steps(line: TallyLine, part: _Part) -> str | None:
    """None where the part is no whole steps, or a single sample."""
    if line.order == DRAWN:  # nothing tells what is in a step
        return None
    end = expected.size(line) - 1
    most = end if line.end is None else sum(each.count for each in expected.parts(line)) - 1
    begin = line.start if line.rank == "all" else 0  # earlier samples belong to no step of this world
    if not begin <= part.first < part.last <= most:
        return None
    first, last = _step(line, part.first), _step(line, part.last)
    if (part.first > begin and _step(line, part.first - 1) == first) or (
        part.last not in (end, most) and _step(line, part.last + 1) == last
    ):
        return None
    return f"{span('step', first, last)} ({_numbered(line, part)}) {_was(line, part, first < last)}"


def _as_samples(line: TallyLine, part: _Part) -> str | None:
    """None where they are so few that each can be named."""
    if part.last - part.first < NAMED:
        return None
    return f"{_numbered(line, part)} {_was(line, part, True)}"


def _step(line: TallyLine, number: int) -> int:
    if line.rank == "all":
        return (number - line.start) // line.batch
    return (line.rank + number * line.world) // line.batch


def _numbered(line: TallyLine, part: _Part) -> str:
    if line.order == DRAWN:
        return f"{span('sample', part.first, part.last)} of the dataset"
    noun, of = ("position", "the order") if line.rank == "all" else ("sample", "its shard")
    return f"{span(noun, part.first, part.last)} of {of}"


def _was(line: TallyLine, part: _Part, plural: bool) -> str:
    ends = [expected.position(line, number) for number in (part.first, part.last)]
    verb = "were" if plural else "was"
    if line.drawn_digest:
        return f"{verb} {_how(line, ends[0], part.times)}"
    if len({expected.times(line, position) for position in ends}) == 1:
        return f"{verb} {_how(line, ends[0], part.times)}"
    return f"{verb} consumed {_times(abs(part.times))} too {'often' if part.times > 0 else 'seldom'}"


def _how(line: TallyLine, position: int, more: int) -> str:
    """How often the sample at a position was consumed, if `more` often than it should have been."""
    if line.drawn_digest:  # which does not tell how often that is
        times = f"{abs(more)} more time{'s' * (abs(more) > 1)}"
        return f"consumed {times} than drawn" if more > 0 else f"drawn {times} than consumed"
    should = expected.times(line, position)
    if should + more == 0:
        return "never consumed"
    if should == 0:
        where = "not in the contract" if line.rank == "all" else "not in its shard"
        if line.end is not None and position >= line.end:
            where = f"the epoch ends before position {line.end}"
        return f"consumed{f' {_times(more)}' * (more != 1)}, though {where}"
    return f"consumed {_times(should + more)}" + f", not {_times(should)}" * (should > 1)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
