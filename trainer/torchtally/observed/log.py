"""The observed lines in logs: found anywhere in a line, each value checked."""

import json
import re
from dataclasses import dataclass, field

from torchtally.observed import line
from torchtally.observed.line import Handed, Rest
from torchtally_observer.line import PREFIX

_START = re.compile(re.escape(PREFIX) + r"(?=\{)")
_DECODER = json.JSONDecoder()


@dataclass
class Lines:
    """Everything read so far."""

    handed: dict[tuple[object, ...], Handed] = field(default_factory=dict)
    rest: list[Rest] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # why a line is no evidence, with its place
    count: int = 0  # of lines, whatever they say

    def add(self, text: str, where: str = "") -> bool:
        """Add what a line of a log holds. Returns whether it holds an observed line."""
        found = False
        if PREFIX not in text:
            return found
        for start in _START.finditer(text):
            found = True
            self.count += 1
            try:
                values, _ = _DECODER.raw_decode(text, start.end())
                self._add(line.parse(values))
            except json.JSONDecodeError:
                self.unread.append(f"{where}: an observed line is cut off, or mixed up with other output".lstrip(": "))
            except (ValueError, RecursionError, TypeError) as error:
                self.unread.append(f"{where}: {error}".lstrip(": "))
        return found

    def _add(self, parsed: Handed | Rest) -> None:
        if isinstance(parsed, Rest):
            if parsed not in self.rest:
                self.rest.append(parsed)
            return
        key = (parsed.process.key, parsed.loader, parsed.sampler.get("type"), parsed.number)
        before = self.handed.get(key)
        if before is None or parsed.batches >= before.batches:  # a pass that was open is said again at its end
            self.handed[key] = parsed

    def __bool__(self) -> bool:
        return bool(self.handed or self.rest or self.unread)
