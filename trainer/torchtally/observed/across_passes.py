"""Several passes together: their order, what none of them hands out, restarts, and test samples that are trained on."""

from collections.abc import Iterable, Iterator

from torchtally.observed import causes, data, sets
from torchtally.observed.data import Data
from torchtally.observed.finding import Finding, fault, note, ranks
from torchtally.observed.line import Handed, Samples
from torchtally.observed.matching import Attempt, Passes
from torchtally.observed.shares import Amount, Shares

_SOME = 0.02


def of_epochs(passes: Passes, world: int, same: Data) -> Iterator[Finding]:
    """What the passes of a loader that trains say together."""
    numbered = _numbered(passes, world)
    if len(numbered) < 2:
        return
    first = next(iter(numbered[0].values()))
    skipped = {line.resumed for each in numbered for line in each.values()}
    if len(skipped) == 1 and (batches := skipped.pop()):
        yield note(
            "skipped",
            f"each of {len(numbered)} passes leaves out its first {batches} batches: a loader that "
            "skip_first_batches() has returned is for the pass of a resume alone",
        )
    if lost := never_reached(passes, world, same):
        yield note(
            "the same part",
            f"each of {len(numbered)} passes is left after the same samples, and {lost} are handed out in none: "
            "shuffle anew in each pass, or go on with one iterator where each step takes next(iter(loader))",
        )
    whole = all(line.whole for each in numbered for line in each.values())
    if first.order is None or first.samples < 2:
        return
    alike = _are_alike(numbered)
    if first.base is None:
        if alike and whole and first.sampler.get("set_epoch") and len(first.smallest) > 1:
            yield _one_order_of_a_stream(first, len(numbered))
        return
    if alike and whole and _shuffles(first):
        never = "; the program never calls set_epoch(epoch) of its sampler" if _ignores_epochs(passes) else ""
        yield note("one order", f"the order is the same in each of {len(numbered)} passes{never}")
    if alike and whole and world > 1 and same in (Data.SAME, Data.ASSUMED) and (shares := Shares.of(numbered[0])):
        missing = shares.size - shares.all_handed.count
        if shares.one_part and missing > 0 and not shares.duplicated.hits and shares.lost.hits:
            named = sets.few(shares.all_held, shares.all_handed)
            which = f" ({', '.join(map(str, named))})" if named else ""
            certain = first.sampler.get("shuffle") is False or first.sampler.get("type") == "SequentialSampler"
            certain = certain and not causes.with_a_purpose(numbered[0])
            yield (fault if certain else note)(  # others may be drawn by a training of its own
                "never",
                f"the same {missing} of {shares.size} samples{which} are handed out in no pass: shuffle anew in each "
                "epoch, or hand out the last ones",
            )


def never_reached(passes: Passes, world: int, same: Data) -> Amount | None:
    """The samples that no pass reaches, where all are left after the same ones; None for none."""
    numbered = _numbered(passes, world)
    left = all(line.end == "left" and line.handed for each in numbered for line in each.values())
    if len(numbered) < 2 or not left or not _are_alike(numbered) or same not in (Data.SAME, Data.ASSUMED):
        return None
    shares = Shares.of(numbered[0])
    return shares.lost if shares and shares.lost.hits else None


def _numbered(passes: Passes, world: int) -> list[dict[int, Handed]]:
    """The passes that all ranks have made."""
    return [each for _, each in sorted(passes.numbers.items()) if len(each) == world]


def _are_alike(numbered: list[dict[int, Handed]]) -> bool:
    """Whether all passes hand out the same samples in the same order."""
    return len({tuple(sorted((rank, line.order) for rank, line in each.items())) for each in numbered}) == 1


def _one_order_of_a_stream(line: Handed, passes: int) -> Finding:
    why = "set_epoch(epoch) of the dataset is never called, or changes nothing"
    if line.sampler.get("persistent"):
        why += " in persistent workers, which keep the copy of the dataset that they began with"
    return note("one order", f"the order of its rows is the same in each of {passes} passes: {why}")


def _shuffles(line: Handed) -> bool:
    sampler = line.sampler
    return bool(sampler.get("shuffle")) or sampler.get("type") in ("RandomSampler", "SubsetRandomSampler")


def _ignores_epochs(passes: Passes) -> bool:
    return len({line.sampler.get("epoch") for line in passes.lines}) == 1 and "epoch" in passes.lines[0].sampler


def of_restart(before: Attempt, after: Attempt, number: int) -> Iterator[Finding]:
    """Whether a new attempt hands out again what the one before had."""
    earlier = {(each.loader.place, each.loader.dataset): each for each in before.loaders}
    for passes in after.loaders:
        same = earlier.get((passes.loader.place, passes.loader.dataset))
        if same is None or not any(line.steps for line in passes.lines) or len(after.ranks) < after.world:
            continue
        begun = passes.numbers[min(passes.numbers)]
        for epoch, own in sorted(same.numbers.items()):
            if own.keys() == begun.keys() and all(
                own[rank].head == line.head is not None and own[rank].samples > 1 for rank, line in begun.items()
            ):
                shares = Shares.of(own)
                if shares is None:
                    break
                share = 100 * shares.all_handed.count / max(1, shares.size)
                yield note(
                    "restart",
                    f"attempt {number} began with the order of epoch {epoch + 1}, of which attempt {number - 1} had "
                    f"handed out {min(share, 100):.0f} %",
                )
                break


def doubt(passes: Passes, trains: Iterable[Passes]) -> str | None:
    """Why a loader may be none of the training, although optimizers stepped after its batches."""
    if all(line.steps == 0 for line in passes.lines):
        return "if steps use its batches: another loader hands out a newer one before each, as after an evaluation"
    if _is_trial(passes, trains):
        return "a few steps of a trial, as of a learning rate: another loader trains on more of the same samples"
    return None


def _is_trial(passes: Passes, trains: Iterable[Passes]) -> bool:
    """Whether a loader has one pass, which is left early, and another one trains on more of the same samples."""
    lines = passes.lines
    bases, samples = {line.base for line in lines}, sum(line.samples for line in lines)
    return (
        len(passes.numbers) == 1
        and all(line.end == "left" and line.base for line in lines)
        and any(
            bases & {line.base for line in each.lines} and sum(line.samples for line in each.lines) > samples
            for each in trains
        )
    )


def leaks(attempt: Attempt, trains: "Iterable[Passes]") -> Iterator[tuple[Passes, Finding]]:
    """Samples that one rank evaluates and others train on, because each has a split of its own."""
    trained = [line for passes in trains for line in passes.lines]
    for passes in attempt.loaders:
        if any(passes is each for each in trains):
            continue
        found = [finding for rank in passes.ranks if (finding := _leak(passes, rank, trained))]
        if found:
            worst = max(found, key=lambda each: each[0])
            yield passes, worst[1]


def _leak(passes: Passes, rank: int, trained: list[Handed]) -> tuple[float, Finding] | None:
    own = next((line for line in passes.lines if line.rank == rank and line.handed and line.base), None)
    if own is None or own.handed is None or own.base is None:
        return None
    alike = [line for line in trained if line.base == own.base and line.handed]
    if data.of({id(line): line for line in [*alike, *passes.lines]}.values()) not in (Data.SAME, Data.ASSUMED):
        return None
    mine = own.handed.bits
    held = sets.together(_held(line) for line in alike if line.rank == rank).bits
    others = sets.together(line.handed for line in alike if line.rank != rank and line.handed).bits
    looked = mine.bit_count()
    if not looked:
        return None
    leaked, both = (mine & others).bit_count() / looked, (mine & held).bit_count() / looked
    if leaked > _SOME and both <= _SOME:
        about = "" if own.base.length == sets.looked(own.base.length or 0) else "about "
        return leaked, fault(
            "leak",
            f"{about}{100 * leaked:.0f} % of the samples that {ranks([rank])} evaluates are "
            "trained on by other ranks: each rank has a split of its own; give random_split the same "
            "generator=torch.Generator().manual_seed(...) on all ranks",
        )
    whole = any(line.holds == own.holds for line in alike)  # it evaluates on what it trains on
    if leaked > _SOME and both > _SOME and not whole:
        return leaked, note("folds", "some of its samples are trained on, too: those of other folds, or a leak")
    return None


def _held(line: Handed) -> Samples:
    if line.holds:
        return line.holds
    assert line.base
    return sets.whole(line.base.length or 0)
