"""What identifies the data of a phase: ranks that each choose samples at random have data that differs."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch.utils import data

from torchtally import compat_datasets

UNKNOWN = "unknown"


def fingerprint(dataset: Any) -> str | None:
    """Return the text that must be the same on all ranks and in all starts; None if only the length can be compared.

    It is the dataset's own. A `Subset`, a selection of Hugging Face's `Dataset`, and a `ConcatDataset` add which
    samples they have of which others. Of the content of Hugging Face's `Dataset`, some rows are compared.
    """
    own: str | None = getattr(dataset, "fingerprint", None)
    if own is not None:
        return own
    if isinstance(dataset, data.ConcatDataset):
        parts = [f"{fingerprint(each) or UNKNOWN} {len(each)}\n" for each in dataset.datasets]  # type: ignore[arg-type]
        return of_parts(f"concat {_sha256(part.encode() for part in parts)}", parts)
    if isinstance(dataset, data.Subset):
        whole, chosen = fingerprint(dataset.dataset), [np.asarray(dataset.indices)]
    else:
        rows = compat_datasets.content(dataset)
        whole, chosen = f"{UNKNOWN} rows {_sha256(rows)}" if rows else None, compat_datasets.chosen(dataset)
    if not chosen:
        return whole
    if any(part.dtype.kind not in "iu" for part in chosen):
        return None
    return f"{whole or UNKNOWN} at {_sha256(part.astype('<i8').tobytes() for part in chosen)}"


def of_parts(text: str, parts: Iterable[str]) -> str:
    """Return the fingerprint `text` of a whole, which is marked as unknown if that of a part is."""
    return f"{UNKNOWN} {text}" if any(map(is_unknown, parts)) else text


def is_unknown(text: str) -> bool:
    """Whether there is data of which only the length is compared, or the choice of samples."""
    return text.startswith(UNKNOWN)


def _sha256(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return f"sha256:{found.hexdigest()[:16]}"
