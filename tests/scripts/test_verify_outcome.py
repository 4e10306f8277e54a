"""What a judgement comes to: proved, or why not; and the exit status that tells it."""

import json
from pathlib import Path
from typing import Any

import bruteforce
import pytest
from answering import LAST, LINES, PODS, Server, pod, refusal
from bruteforce import Line
from judged import line, read, verdict

from torchtally.commands import verify
from torchtally.verifier.outcome import Outcome, worst
from torchtally.verifier.verdict import judge

PLAN = {"train": 3}


def outcome(lines: list[Line], **options: Any) -> str:
    return verdict(lines, **options).outcome


def test_each_has_its_own_status_and_the_worst_counts() -> None:
    status = {each.value: each.status for each in Outcome}
    of_observations = {"observed": 0, "faulty": 1}
    assert status == {"proved": 0, "disproved": 1, "incomplete": 3, "pending": 4, "failed": 5} | of_observations
    ordered = [Outcome.DISPROVED, Outcome.FAULTY, Outcome.FAILED, Outcome.PENDING, Outcome.INCOMPLETE]
    ordered += [Outcome.OBSERVED, Outcome.PROVED]
    assert [worst(ordered[at:]) for at in range(7)] == ordered


def test_what_is_missing_makes_a_proof_incomplete() -> None:
    whole = bruteforce.run()
    for lines in whole[1:], whole[:-1], [each for each in whole if each["rank"] != 2], whole[:7], []:
        assert outcome(lines) == "incomplete"
    assert outcome([*whole, bruteforce.last(whole)]) == "proved"


@pytest.mark.parametrize("at", [0, 4])
def test_what_contradicts_disproves_even_where_more_is_missing(at: int) -> None:
    for values in {"consumed": 16}, {"n": 61}, {"world": 5}, {"seed": 7}, {"expected": 14}:
        lines = bruteforce.run(plan=PLAN)
        lines[at] |= values
        assert outcome(lines) == outcome(lines[:9]) == "disproved", values


def test_a_lost_sample_disproves() -> None:
    lines = bruteforce.run(consume=lambda phase, epoch, rank, shard: shard[rank == 1 :])
    assert outcome(lines) == outcome(lines[1:]) == outcome(lines[:2]) == "disproved"


def test_a_line_that_cannot_be_read_is_missing_and_a_wrong_one_disproves() -> None:
    text = bruteforce.text(bruteforce.run())
    for bad in 'TORCHTALLY {"v":2,\n', 'TORCHTALLY {"v":2,"run"xyz\n', 'TORCHTALLY {"v":3,"run":"a"}\n':
        assert [each.outcome for each in judge(read(bad))] == ["incomplete"]
        assert {each.outcome for each in judge(read(text + bad))} == {"incomplete"}
    wrong = text.replace('"consumed":15', '"consumed":-1', 1)
    assert [each.outcome for each in judge(read(wrong))] == ["disproved"]
    twice = text + text.splitlines()[0].replace('"consumed":15', '"consumed":14')
    assert [each.outcome for each in judge(read(twice))] == ["disproved"]


def test_an_epoch_that_ends_early_is_incomplete_unless_the_run_went_on() -> None:
    early = bruteforce.run(plan=PLAN, ends={"train": (2, 40)})
    assert outcome(early) == "incomplete"  # only the last line can say that the run was stopped
    rest = [each for each in bruteforce.run(plan=PLAN) if each["epoch"] == 3]
    assert outcome([*early, *rest]) == "disproved"
    later = [each | {"attempt": 1, "began": each["began"] + 1} for each in rest]
    assert outcome([*early, *later]) == "incomplete"  # attempt 1 can have done epoch 2 again


def test_an_attempt_after_the_last_line_is_incomplete() -> None:
    lines = bruteforce.run(plan=PLAN)
    later = [each | {"attempt": 1, "began": each["began"] + 1} for each in lines if each["epoch"] == 3]
    assert outcome([*lines, bruteforce.last(lines), *later]) == "incomplete"


def test_pods_that_must_have_consumed_a_number_of_samples() -> None:
    lines = bruteforce.run(plan=PLAN, ranks_per_pod=2)
    assert outcome([*lines, bruteforce.last(lines)], expect_per_pod=30) == "proved"
    assert outcome(lines, expect_per_pod=31) == "disproved"
    one = [each for each in lines if (each["rank"], each["epoch"]) != (0, 3)]  # its pod has too few for that alone
    assert outcome(one, expect_per_pod=30) == "incomplete"
    assert outcome(one, expect_per_pod=29) == "disproved"
    assert outcome([bruteforce.last(lines)], expect_per_pod=30) == "incomplete"


# The job in the cluster


def judged(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """The exit status and the last line, which agree with the JSON."""
    status = verify.main(["--job", "demo", *args])
    said = capsys.readouterr().out.splitlines()[-1]
    assert verify.main(["--job", "demo", "--json", *args]) == status
    found = json.loads(capsys.readouterr().out)["outcome"]
    assert Outcome(found).status == status
    assert said.startswith(f"✗ {found}: ") or (status == 0 and said.startswith("✓ "))
    return status, said


def half(server: Server) -> None:
    """Only the first epoch of each phase has been printed."""
    for name in PODS:
        server.log(name, bruteforce.text([each for each in LINES if each["pod"] == name and each["epoch"] == 1]))


@pytest.mark.parametrize(
    ("conditions", "suspend", "labels", "state"),
    [
        ((), True, {"kueue.x-k8s.io/queue-name": "gpus"}, "queued"),
        (("Created", "Suspended"), True, {}, "suspended"),
        ((), False, {}, "starting"),
        (("Created",), False, {}, "starting"),
        (("Created", "Running"), False, {"kueue.x-k8s.io/queue-name": "gpus"}, "running"),
        (("Created", "Restarting"), False, {}, "restarting"),
    ],
)
def test_a_job_that_has_not_ended_is_pending(
    server: Server, capsys: Any, conditions: tuple[str, ...], suspend: bool, labels: dict[str, str], state: str
) -> None:
    server.state(*conditions)
    server.job["spec"]["runPolicy"]["suspend"] = suspend
    server.job["metadata"]["labels"] = labels
    half(server)
    so_far = "proved up to there: train epoch 1, test epoch 1"
    assert judged(capsys) == (4, f"✗ pending: PyTorchJob demo is {state}; {so_far}")
    for name in PODS:
        server.answers[pod(name)] = refusal(404, "not found", name)
    assert judged(capsys) == (4, f"✗ pending: PyTorchJob demo is {state}; proved up to there: nothing")


def test_a_job_that_failed_tells_why_and_what_is_proved(server: Server, capsys: Any) -> None:
    server.state("Created", "Failed", message="PyTorchJob demo is failed because 1 Worker replica(s) failed.")
    half(server)
    why = "PyTorchJob demo has failed: PyTorchJob demo is failed because 1 Worker replica(s) failed"
    assert judged(capsys) == (5, f"✗ failed: {why}; proved up to there: train epoch 1, test epoch 1")


def test_a_job_that_succeeded_without_all_lines_is_incomplete(server: Server, capsys: Any) -> None:
    half(server)
    assert judged(capsys)[0] == 3


@pytest.mark.parametrize("state", ["Running", "Failed", "Succeeded"])
def test_what_is_proved_or_disproved_stays_so(server: Server, capsys: Any, state: str) -> None:
    """The controller can be late, or know of other failures."""
    server.state("Created", state)
    server.proves()
    assert judged(capsys)[0] == 0
    half(server)
    wrong = line(LINES, 0) | {"consumed": 14}
    server.log("demo-master-0", bruteforce.text([wrong]))
    assert judged(capsys)[0] == 1


def test_of_several_runs_the_worst_counts(server: Server, capsys: Any) -> None:
    server.state("Created", "Running")
    master = [each for each in LINES if each["pod"] == PODS[0]]
    later = bruteforce.run(run="later", began=LINES[0]["began"] + 1)[:3]
    server.log("demo-master-0", bruteforce.text([*master, LAST, *later]))
    status, said = judged(capsys)
    assert status == 4 and said.startswith("✗ pending: 1 of 2 runs is proved: 3f9c2a7b10de; not proved: later (")
    assert verify.main(["--job", "demo", "--json"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert [each["outcome"] for each in told["runs"]] == ["proved", "pending"]
    assert judged(capsys, "--run", "3f9c2a7b10de")[0] == 0


def test_files_are_never_pending(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    log.write_text(bruteforce.text(LINES[:3]))
    assert verify.main([str(log)]) == 3
