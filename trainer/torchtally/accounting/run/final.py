"""A failure that is final: a loop that catches it must not continue."""

from collections.abc import Callable
from types import TracebackType

from torchtally.errors import Ending


class Final:
    """A `with` statement for what can fail. It raises the first failure again, and tells of each.

    It is a class, as each batch enters it: a generator takes several times as long.
    """

    def __init__(self, tell: Callable[[Ending], None]) -> None:
        self._tell = tell
        self._failure: Ending | None = None

    def check(self) -> None:
        """Raise the failure, if there was one."""
        if self._failure:
            raise self._failure

    def __enter__(self) -> None:
        self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Ending):
            self._failure = error
            self._tell(error)
