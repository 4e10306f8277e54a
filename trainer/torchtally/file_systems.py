"""File systems of fsspec, on this machine or in an object store, and the errors that their libraries raise."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from torchtally.errors import Ending, Refused, Volume

_DENIED = {"400", "401", "403", "404", "AccessDenied", "InvalidAccessKeyId", "NoCredentialsError", "NoSuchBucket"}


def opened(url: str, what: str = "", **options: Any) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it. Raises Refused, and says `what` the URL is."""
    try:
        fs, path = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        raise Refused(f"{what}{url!r} cannot be used: {error}") from None
    return fs, path


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Turn errors of an object store's library into OSError: other ranks learn of them, and may not have that type."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("builtins", "torch"):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from None


class Missing(Refused):
    """There is no such file or object."""


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn what libraries raise while they read `url` into Refused, or Volume if another attempt can succeed."""
    try:
        yield
    except Ending:
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError):
            raise Missing(f"{url} does not exist") from None
        kind, said = type(error).__name__, getattr(error, "response", None) or {}
        code = said.get("Error", {}).get("Code") if isinstance(said, dict) else None  # botocore's
        # What was read is wrong, or a library was used wrongly.
        final = isinstance(error, ValueError | PermissionError | IsADirectoryError) or (
            type(error).__module__ == "builtins" and not isinstance(error, OSError)
        )
        refused = final or {kind, code} & _DENIED
        text = " ".join(f"{url} cannot be read: {kind}: {error}".split())
        raise (Refused if refused else Volume)(text) from None
