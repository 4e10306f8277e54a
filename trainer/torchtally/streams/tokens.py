"""Files of tokens, as nanoGPT and others write them: unsigned integers without a header, read by memory map."""

import os

import numpy as np
import torch
from torch import Tensor

from torchtally.errors import Refused, whole
from torchtally.streams.files import Files, Opener, check_distinct, expanded, without_place
from torchtally.streams.shards import Shards

_DTYPES = ("uint16", "uint32")


class TokenFiles(Shards):
    """Rows of `block + 1` successive tokens, as int64 (block + 1,). Each file is a shard.

    Row `i` of a file begins at its token `i * block`: a model that predicts the last `block` tokens of each row
    predicts each token but a file's first once. Tokens at a file's end that make no whole row are left out.

    Args:
        files: Paths or URLs, or one of them with `*`.
        block: Number of tokens that a row predicts.
        dtype: Type of the tokens: `uint16` or `uint32`, in the byte order of this machine.
        open_shards: Number of files that a process keeps open.
        local: Folder for copies of files that are not on this machine (default: a temporary one).
        cache_limit: Bytes of the copies (default: no limit).

    Example:
        >>> np.arange(100, dtype="uint16").tofile(f"{folder}/a.bin")
        >>> rows = TokenFiles(f"{folder}/*.bin", block=4)
        >>> len(rows), rows[1]
        (24, tensor([4, 5, 6, 7, 8]))

    Raises:
        Refused: An argument is not valid, or a file is not of whole tokens.
        Volume: A file cannot be read, and another attempt can succeed.
    """

    def __init__(
        self,
        files: Files,
        *,
        block: int,
        dtype: str = "uint16",
        open_shards: int = 32,
        local: str | os.PathLike[str] | None = None,
        cache_limit: int | None = None,
    ):
        if dtype not in _DTYPES:
            raise Refused(f"dtype={dtype!r} must be one of {', '.join(_DTYPES)}")
        self._block, self._dtype = whole("block", block), np.dtype(dtype)
        urls = expanded(files)
        self._files = Opener(urls, local, cache_limit)
        for url, size in zip(urls, self._files.sizes, strict=True):
            if size % self._dtype.itemsize:
                raise Refused(
                    f"{url} has {size} bytes, which are not whole tokens of {dtype}: pass the dtype of "
                    "the file, or copy it again"
                )
        tokens = [size // self._dtype.itemsize for size in self._files.sizes]
        rows = [max(0, each - 1) // block for each in tokens]
        check_distinct(urls, rows)
        super().__init__("tokens", rows, [dtype, block, tokens, without_place(urls)], open_shards)

    def _open(self, shard: int) -> np.ndarray:
        with self._files.open(shard) as file:
            return np.memmap(file, dtype=self._dtype, mode="r")

    def _read(self, opened: np.ndarray, rows: list[int]) -> list[Tensor]:
        starts = [row * self._block for row in rows]
        return [torch.from_numpy(opened[start : start + self._block + 1].astype(np.int64)) for start in starts]
