"""A watch over ranks that hang: where each of them stands is written down before anything ends them.

Ranks that wait for one another all stop where one of them does. So a pod hangs if none of its ranks has taken a batch
for a while. Where no batch is seen, as before the first one, it hangs if its ranks use no CPU: what computes or loads
goes on. Each pod finds this by itself, and the pods tell each other where their ranks stand.
"""

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.distributed import DistError

from torchtally import events
from torchtally.log import log
from torchtally.pod import signals, stacks

_OTHERS = 10.0  # seconds for the other pods to tell where their ranks stand
_LOOK = 10.0  # seconds for a look, before ranks are ended
_LOOKS = 60  # until ranks count as hanging
_IDLE = 0.01  # of a CPU, for all ranks of a pod
_SPENT = 0.1  # seconds of a CPU, for what is rounded and for writing the stacks
_MOST = 1 << 20  # characters of a file
_NAMED = 8  # ranks of a place, and places
_GIST = 900  # characters: the termination message has the cause as well
Stands = list[tuple[int, str, str]]  # rank, pod, and place
# Tells the other pods where this one's ranks stand (None: they continue), and returns what all have told.
Share = Callable[[str | None], Sequence[str]]


class Hang:
    """The watch of one pod.

    Args:
        pod: Its name.
        folder: In which its ranks show that they continue, and write their stacks.
        output: The folder that gets the stacks.
        seconds: How long the ranks give no sign until they count as hanging; 0 for never.
        share: None if the pods of this job tell each other nothing.
    """

    def __init__(self, pod: str, folder: Path, output: Path, seconds: float, share: Share | None) -> None:
        self._pod, self._folder, self._output, self._seconds, self._share = pod, folder, output, seconds, share
        self._told: str | None = None  # where the ranks stand, if they still do
        self._at = stacks.Stage()  # what they had reached by then
        self._one_at_a_time = threading.Lock()

    @property
    def sentence(self) -> str | None:
        """Where the ranks stand, if they hang or have ended so."""
        return self._told if stacks.stage(self._folder) == self._at else None

    @property
    def trained(self) -> bool:
        """Whether the ranks have taken a batch."""
        return stacks.stage(self._folder).count > 0

    def start(self) -> None:
        """Begin to watch, in a thread."""
        if self._seconds:
            threading.Thread(target=self._watch, daemon=True).start()

    def look(self) -> None:
        """Write down where the ranks stand, which are about to be ended."""
        if self._told:
            return
        looking = threading.Thread(target=self._write, args=[None, 0.0], daemon=True)
        looking.start()
        looking.join(_LOOK)  # they are ended all the same if the volume does not answer

    def _watch(self) -> None:
        interval = max(self._seconds / _LOOKS, min(1.0, self._seconds / 4))
        looks = math.ceil(self._seconds / interval)
        # Looks are counted, not time: the clock runs on while this pod is frozen itself.
        still, before, spent = 0, stacks.Stage(), 0.0
        while True:
            time.sleep(interval)
            now = stacks.stage(self._folder)
            still = still + 1 if now == before and not signals.begun() else 0
            before = now
            if not (now.count or now.over):
                used = stacks.cpu_seconds()
                if not still or used - spent > _IDLE * still * interval + _SPENT:
                    still, spent = 0, used
            if self._told and not still and not signals.begun():
                self._goes_on()
            if still and still % looks == 0:  # again: ranks may use almost no CPU from one place to the next
                self._write(self._seconds * (still // looks), wait=0.0 if self._told else _OTHERS)

    def _goes_on(self) -> None:
        self._told = None
        log.info("the ranks continue")
        events.emit(events.Continued(), events.Source(pod=self._pod))
        if self._share:
            with contextlib.suppress(DistError):
                self._share(None)

    def _write(self, seconds: float | None, wait: float) -> None:
        with self._one_at_a_time:
            at = stacks.stage(self._folder)
            found = stacks.all_of(self._folder, others=seconds is not None)
            own: Stands = [(rank, self._pod, place) for rank, place, _ in found]
            if not own:
                return
            path = self._keep("\n\n".join(f"rank {rank} ({self._pod})\n{text}" for rank, _, text in found))
            stands = gist(own if at.over else self._all(own, wait))
            how = _how(at, seconds) if seconds else ""
            before, now = self._told, f"{how}{stands}" if at.over else stands
            self._at = at
            if before and _functions(before) == _functions(now):
                return
            self._told = now
            log.warning(f"{how}{stands}" + (f"; their stacks are in {path}" if path else ""))
            event = events.Stuck(seconds=seconds, stands=self._told, stacks=str(path) if path else None)
            events.emit(event, events.Source(pod=self._pod))

    def _keep(self, text: str) -> Path | None:
        """Write the file of this pod, of which there is one at most."""
        path = self._output / f"stacks-{self._pod}.txt"
        try:
            self._output.mkdir(parents=True, exist_ok=True)
            path.write_text(text[:_MOST])
        except OSError as error:
            log.warning(f"the stacks of the ranks cannot be written: {error}")
            return None
        return path

    def _all(self, own: Stands, wait: float) -> Stands:
        """Where the ranks of all pods stand, as far as those tell it in time."""
        if not self._share:
            return own
        told = [json.dumps(own)]
        until = time.monotonic() + wait
        pause = 0.2
        with contextlib.suppress(DistError):
            while True:
                posted = self._share(told[0])
                told = [told[0], *(each for each in posted if each and each != told[0])]
                if len(told) == len(posted) or time.monotonic() >= until:
                    break
                time.sleep(pause)
                pause *= 2  # each pod asks for what all have told
        return sorted((rank, pod, place) for each in told for rank, pod, place in json.loads(each))


def _how(at: stacks.Stage, seconds: float) -> str:
    if at.over:
        return f"all samples were consumed {seconds:g} s ago, and the program has not ended: "
    if at.count:
        return f"no rank of this pod has taken a batch for {seconds:g} s: "
    return f"the ranks of this pod have used almost no CPU for {seconds:g} s: "


def _functions(sentence: str) -> str:
    """The sentence without durations and lines: a rank that waits in a loop stands in one place."""
    return re.sub(r"\S+ s ago|:\d+\)", "", sentence)


def gist(stands: Stands) -> str:
    """Where most ranks stand, and which stand elsewhere."""
    places: dict[str, list[tuple[int, str]]] = {}
    for rank, pod, place in stands:
        places.setdefault(place, []).append((rank, pod))
    first, *others = sorted(places.items(), key=lambda each: -len(each[1]))
    parts = [_stand(*first), *(_stand(*each, pods=True) for each in others[:_NAMED])]
    return "; ".join(parts)[:_GIST]


def _stand(place: str, ranks: list[tuple[int, str]], pods: bool = False) -> str:
    names = [f"{rank} ({pod})" if pods else str(rank) for rank, pod in ranks[:_NAMED]]
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    if len(ranks) == 1:
        return f"rank {names[0]} stands in {place}"
    return f"ranks {', '.join(names)}{more} stand in {place}"
