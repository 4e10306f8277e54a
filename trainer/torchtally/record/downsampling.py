"""A bounded part of a long series."""

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Spread(Generic[Item]):
    """Keeps at most `most` of the items, evenly spread over all of them, and the newest one."""

    def __init__(self, most: int) -> None:
        self._most, self._stride, self._count = most, 1, 0
        self._kept: list[Item] = []
        self._newest: list[Item] = []

    def add(self, item: Item) -> None:
        if self._count % self._stride == 0:
            if len(self._kept) == self._most:
                self._kept, self._stride = self._kept[::2], 2 * self._stride
            if self._count % self._stride == 0:
                self._kept.append(item)
        self._count += 1
        self._newest = [item]

    @property
    def items(self) -> list[Item]:
        newest = [item for item in self._newest if not self._kept or self._kept[-1] is not item]
        return [*self._kept, *newest]
