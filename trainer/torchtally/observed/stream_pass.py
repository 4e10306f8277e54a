"""One pass without indices: rows that are equal on two ranks, or that come several times to one."""

from collections.abc import Iterable, Iterator, Mapping

from torchtally.observed.causes import Lines
from torchtally.observed.finding import Finding, fault, note, ranks, right
from torchtally.observed.line import Handed
from torchtally.observed.training_pass import Counted
from torchtally_observer.streams import KEPT

_RANGE = 1 << 32  # of a checksum
_SOME = 0.05  # of the rows: less can be rows that are equal by chance
_NEARLY_ALL = 0.95
_AGAIN = 0.3  # of the rows of one rank that come more than once: three standard errors of `distinct`
_FEW = 16  # distinct rows, of which nothing is said


def judge(lines: Lines, trains: bool, world: int, stable: bool) -> Counted:
    """Judge one pass of an iterable dataset, of which rows are `stable` if equal samples are equal rows."""
    return Counted(tuple(_found(lines, trains, world, stable)))


def are_stable(passes: Iterable[Lines]) -> bool:
    """Whether rows have keys, or came again in another pass: rows that are augmented anew do not."""
    seen: set[int] = set()
    for lines in passes:
        if all(line.keyed for line in lines.values()):
            return True
        own = {value for line in lines.values() for value in line.smallest}
        if len(own & seen) > _SOME * len(own):
            return True
        seen |= own
    return False


def _found(lines: Lines, trains: bool, world: int, stable: bool) -> Iterator[Finding]:
    if any(line.loader.type == "DataLoaderDispatcher" for line in lines.values()):
        yield note("dispatched", "rank 0 draws all batches and hands slices to the others: not judged")
        return
    lines = {rank: line for rank, line in lines.items() if line.samples}
    known = {rank: line for rank, line in lines.items() if line.smallest}
    if not known or len(known) < len(lines):
        if lines:
            yield note("rows", "its rows are of no kind that can be told apart, so nothing is judged")
        return
    what = "samples" if all(line.keyed for line in known.values()) else "rows"
    often = [*_repeats(known, what)]
    yield from often
    shared = _shared(known)
    again = 0.0 if often else max(1 - distinct(line) / max(1, line.rows or 0) for line in known.values())
    if again > _AGAIN:
        yield note("again", f"about {100 * again:.0f} % of the {what} come more than once to one rank")
    if world > 1 and len(known) < world and trains:
        yield note("some", f"{ranks([*known])} alone of {world} drew {what}")
    elif shared is None or (often and shared <= _SOME):
        return
    elif shared > _SOME and (shared < 3 * again + _SOME or not all(map(_is_varied, known.values()))):
        yield note(
            "few",
            f"ranks are handed equal {what} about as often as each rank is: they are drawn with replacement, "
            f"or there are few distinct ones",
        )
    elif shared > _SOME and trains:
        told = f"the ranks are handed the same {what}: the dataset does not divide them by rank"
        if shared < _NEARLY_ALL:
            told = (
                f"about {100 * shared:.0f} % of the {what} are handed to several ranks: the dataset does not divide "
                "them by rank, or each rank shuffles them for itself before that"
            )
        use = "use split_by_node (WebDataset), split_dataset_by_node (datasets), or the rank in __iter__"
        endless = all(line.end == "left" for line in known.values())  # it may draw at random
        yield (note if endless and shared < _NEARLY_ALL else fault)("same rows", f"{told}; {use}")
    elif shared > _SOME:
        yield note("all evaluate", f"the ranks evaluate the same {what}")
    elif stable and again <= _AGAIN:
        yield right(f"no {what[:-1]} on two ranks, of those that were looked at; {what} of no rank are not seen")
    elif not stable:
        yield note("rows", "no row is equal on two ranks; samples that are augmented or padded anew could not be seen")


def _repeats(lines: Mapping[int, Handed], what: str) -> Iterator[Finding]:
    """Rows that come as often as there are workers."""
    for rank, line in lines.items():
        often = (line.rows or 0) / distinct(line)
        workers = line.loader.workers
        goes_round = line.fresh is not None and line.fresh * often < 1.25 * (line.rows or 0)  # all rows, then all again
        if workers > 1 and _is_varied(line) and abs(often - workers) < 0.25 * workers and not goes_round:
            yield fault(
                "workers",
                f"each {what[:-1]} comes {often:.0f} times to rank {rank}, which has {workers} workers: the dataset "
                "does not divide them by worker; use torch.utils.data.get_worker_info() in __iter__",
            )
            return


def distinct(line: Handed) -> float:
    """About how many distinct rows there are: (k - 1) / the share of the range below the k-th smallest checksum."""
    kept = line.smallest
    return float(len(kept)) if len(kept) < KEPT else (len(kept) - 1) / ((max(kept) + 1) / _RANGE)


def _is_varied(line: Handed) -> bool:
    """Whether most rows are distinct but for those that come once from each worker."""
    return distinct(line) >= _FEW and (line.rows or 0) / distinct(line) < max(2, line.loader.workers) * 1.5


def _shared(lines: Mapping[int, Handed]) -> float | None:
    """The share of rows that two ranks have, of those that one has: the largest of all pairs. None for one rank."""
    found = [frozenset(line.smallest) for line in lines.values()]
    if len(found) < 2:
        return None
    cut = min(max(each) if len(each) == KEPT else _RANGE for each in found)
    found = [frozenset(value for value in each if value <= cut) for each in found]
    seen: set[int] = set()
    most = 0.0
    for each in found:
        if each:
            most = max(most, len(each & seen) / len(each))
        seen |= each
    return most
