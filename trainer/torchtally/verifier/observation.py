"""The observation in a log, beside its runs: what was handed out to programs that keep no account."""

from collections import defaultdict
from collections.abc import Iterator

from torchtally.observed import judge
from torchtally.observed.finding import numbers
from torchtally.observed.judge import Observation
from torchtally.observed.line import Handed
from torchtally.verifier.log import Log
from torchtally.verifier.outcome import Outcome, Unsuccessful

_OUTCOMES = {
    judge.Outcome.OBSERVED: Outcome.OBSERVED,
    judge.Outcome.INCOMPLETE: Outcome.INCOMPLETE,
    judge.Outcome.FAULTY: Outcome.FAULTY,
}


def observation_of(log: Log, expect_per_pod: int | None = None) -> Observation | None:
    """The observation of all observed lines in a log; None if there is none."""
    found = judge.judge(log.observed)
    if found is None:
        return None
    found.missing += [complaint.text for complaint in log.complaints if complaint.no_log]
    if not log.runs:
        found.notes[:0] = log.remarks
        found.missing += log.heard.failed_for_good  # a job succeeds with its master, even if a worker fails later
        if not log.job:
            open_pods = sorted(_pods(found) & log.heard.without_end)
            found.missing += [f"{pod} has started, and no log has its end: it runs, or was killed" for pod in open_pods]
    if log.job and not found.missing:  # ranks may have more to say, or have died before they could
        found.missing.append(log.job.sentence)
    if expect_per_pod is not None:
        found.unexpected += _unexpected(found, expect_per_pod)
    return found


def outcome_of(found: Observation, job: Unsuccessful | None) -> Outcome:
    """What an observation of this job comes to."""
    own = _OUTCOMES[found.outcome]
    return job.outcome if job and own is Outcome.INCOMPLETE else own


def _pods(found: Observation) -> set[str]:
    """Those of the newest attempt."""
    newest = [loader for loader in found.loaders if loader.attempt == found.attempts - 1]
    return {line.process.pod for loader in newest for each in loader.passes for line in each.lines.values()}


def _unexpected(found: Observation, count: int) -> Iterator[str]:
    for loader in found.loaders:
        wrong: dict[tuple[str, int], list[int]] = defaultdict(list)  # passes by pod and samples
        for each in loader.passes if loader.trains else ():
            pods: dict[str, list[Handed]] = defaultdict(list)
            for _, line in sorted(each.lines.items()):
                pods[line.process.pod].append(line)
            for pod, lines in pods.items():
                samples = sum(line.samples for line in lines)
                more_to_come = samples < count and any(line.end == "open" for line in lines)
                if samples != count and not more_to_come:
                    wrong[pod, samples].append(each.number + 1)
        for (pod, samples), passes in wrong.items():
            where = f"{loader.loader}, pass{'es' * (len(passes) > 1)} {numbers(passes)}"
            yield f"{where}: pod {pod} was handed out {samples} samples, but --expect-per-pod is {count}"
