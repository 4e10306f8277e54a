"""One JSON line a rank, and the table for people.

The lines are the record that outlives the pods. docs/reference/line.md describes them, and proof/line.py has their
format. `scripts/verify_shards.py` checks them again from the numbers in them alone.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from torchtally import standard_output
from torchtally.accounting.ledger.tally import Tally
from torchtally.pod import termination_message
from torchtally.proof import line as lines
from torchtally.proof.digest import Digest
from torchtally.proof.line import NAMED, Rank, TallyLine
from torchtally.proof.order import sizes_of
from torchtally.proof.permutation import Indices

Wrong = list[tuple[int, Indices]]  # how many samples were consumed too often (lost: negative), and some of them


def line_of(
    tally: Tally,
    rank: Rank,
    pod: str,
    expected: int,
    consumed: int,
    digest: Digest,
    dropped: Digest,
    drawn: Digest | None,
    wrong: Wrong | None,
    outside: list[int],
) -> dict[str, Any]:
    """The line of a rank, or of all together. `wrong` is None where it is too much to be known."""
    lost: Wrong = [(-times, some) for times, some in wrong or () if times < 0]
    duplicated: Wrong = [(times, some) for times, some in wrong or () if times > 0]
    duplicated.append((consumed - digest.words[0], np.array(outside, dtype=np.int64)))
    run, phase = tally.run, tally.phase
    return TallyLine(
        **{**asdict(run), "rank": rank, "pod": pod},
        **{each: getattr(phase, each) for each in ("epoch", "n", "start", "batch", "contract", "end")},
        phase=phase.name,
        order=str(phase.order),
        sizes=sizes_of(phase.order) if rank == "all" else None,
        expected=expected,
        consumed=consumed,
        digest=str(digest),
        dropped=dropped.words[0] or None,
        dropped_digest=str(dropped) if any(dropped.words) else None,
        drawn_digest=str(drawn) if drawn else None,
        lost=None if wrong is None else _samples(lost),
        duplicated=None if wrong is None else _samples(duplicated),
        lost_indices=_indices(lost),
        duplicated_indices=_indices(duplicated),
        mixture=phase.mix.counts(tally.shard) if phase.mix and rank == "all" else None,
    ).printed()


def emit(line: Mapping[str, Any]) -> None:
    """Print a tally line."""
    standard_output.write(lines.to_text(line))


def emit_last(line: Mapping[str, Any]) -> None:
    """Print the last line of a run, which the pod's termination message keeps as well."""
    emit(line)
    termination_message.keep(lines.to_text(line))


def _samples(wrong: Wrong) -> int:
    return sum(count for count, _ in wrong)


def _indices(wrong: Wrong) -> tuple[int, ...]:
    return tuple(sorted({index for _, some in wrong for index in some.tolist()})[:NAMED])
