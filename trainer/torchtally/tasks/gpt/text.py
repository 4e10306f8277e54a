"""Text as tokens: a byte-pair encoding that is trained on the text, and a file of tokens that is mapped into memory.

Both are made once for each text and size of the vocabulary, and stay in the cache.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torch.utils.data import Dataset

from torchtally.errors import Refused, require

_PIECE = 1 << 20  # characters that are encoded at a time
_TEST = 20  # one window of so many is for the test


@dataclass(frozen=True)
class Text:
    """A tokenized text. `sha256` is the hash of its tokens."""

    tokens: Any  # mapped uint16 (tokens,)
    tokenizer: Any
    sha256: str

    @property
    def fingerprint(self) -> str:
        return f"sha256:{self.sha256[:16]}"


class Windows(Dataset[Tensor]):
    """Successive windows of a text: `length` tokens and the next one, as int64 (length + 1,)."""

    def __init__(self, text: Text, length: int, first: int, count: int):
        self._tokens, self._length, self._first, self._count = text.tokens, length, first, count
        self.fingerprint = text.fingerprint

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        begin = (self._first + range(self._count)[index]) * self._length
        return torch.from_numpy(self._tokens[begin : begin + self._length + 1].astype(np.int64))


def split(text: Text, length: int) -> tuple[Windows, Windows]:
    """The windows to train with, and the last ones, to test with. Raises Refused."""
    windows = (len(text.tokens) - 1) // length
    tests = -(-windows // _TEST)
    if windows < 2:
        raise Refused(f"the text has {len(text.tokens)} tokens, too few for two samples of --length {length}")
    return Windows(text, length, 0, windows - tests), Windows(text, length, windows - tests, tests)


def load(folder: Path | None, cache: Path, vocabulary: int) -> Text:
    """The text of all files in `folder` (default: the source code of torch.optim), tokenized. Raises Refused."""
    require("tokenizers", "this task needs", "gpt")
    from tokenizers import Tokenizer

    try:
        found = folder.rglob("*") if folder else Path(torch.optim.__file__).parent.glob("*.py")
        files = sorted(path for path in found if path.is_file())
        known = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        if not files:
            raise Refused(f"the data folder {folder} (--data) must hold text files, and has no file")
    except OSError as error:
        raise Refused(f"the data folder {folder} (--data) cannot be read: {error}") from None
    key = hashlib.sha256(json.dumps([vocabulary, known]).encode()).hexdigest()[:16]
    home = cache / "gpt" / key
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(home.with_suffix(".lock")):
            if not home.exists():
                _make(home, partial(_pieces, files), vocabulary)
        tokens = np.memmap(home / "tokens.bin", dtype=np.uint16, mode="r")
        return Text(tokens, Tokenizer.from_file(str(home / "tokenizer.json")), (home / "sha256").read_text())
    except OSError as error:
        raise Refused(f"the cache folder {home} (TORCHTALLY_CACHE) cannot be used: {error}") from None


def _pieces(files: list[Path]) -> Iterator[str]:
    """The text in pieces that end with a line. Raises Refused."""
    for path in files:
        try:
            with path.open(encoding="utf-8", newline="") as lines:
                while piece := "".join(lines.readlines(_PIECE)):
                    yield piece
        except UnicodeDecodeError as error:
            raise Refused(f"the file {path} (--data) must be text in UTF-8: {error.reason} at {error.start}") from None


def _make(home: Path, pieces: Any, vocabulary: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()  # each byte is a token, so any text can be encoded
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(pieces(), trainer)
    with tempfile.TemporaryDirectory(dir=home.parent) as temporary:
        whole = Path(temporary, "whole")
        whole.mkdir()
        tokenizer.save(str(whole / "tokenizer.json"))
        (whole / "sha256").write_text(_write(whole / "tokens.bin", (tokenizer.encode(each).ids for each in pieces())))
        whole.replace(home)


def _write(path: Path, encoded: Iterable[list[int]]) -> str:
    sha256 = hashlib.sha256()
    with path.open("wb") as file:
        for ids in encoded:
            data = np.array(ids, dtype=np.uint16).tobytes()
            sha256.update(data)
            file.write(data)
    return sha256.hexdigest()
