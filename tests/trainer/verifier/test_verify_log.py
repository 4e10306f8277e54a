"""Tally lines out of real logs: whatever stands around them, whatever happened to them."""

import csv
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import bruteforce
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from judged import NO_TEXTS, no_integers, read

from torchtally import events
from torchtally.verifier.log import Log
from torchtally.verifier.verdict import Verdict, judge

LINES = bruteforce.run(world=2, plan={"train": 1})
TEXT = bruteforce.text(LINES)
FIRST, SECOND, TOGETHER = TEXT.splitlines()
DIGEST = "20 numbers below 2**61 - 1 in base64 for URLs"
GOOD_DIGEST = LINES[0]["digest"]
BAD_DIGESTS = [
    1,
    None,
    "",
    GOOD_DIGEST[:-1],
    GOOD_DIGEST + "A",
    GOOD_DIGEST + "==",
    GOOD_DIGEST[:-1] + chr(ord(GOOD_DIGEST[-1]) + 1),  # in bits that say nothing
    GOOD_DIGEST[:50] + "*" + GOOD_DIGEST[51:],
    GOOD_DIGEST[:50] + "é" + GOOD_DIGEST[51:],
    bruteforce.encoded([30] * 19),
    bruteforce.encoded([30] * 21),
    bruteforce.encoded([30] * 19 + [bruteforce.P]),
]
HUGE = (1 << 63) - 1


def of(text: str, **options: Any) -> Verdict:
    [found] = judge(read(text), **options)
    return found


def problems(text: str) -> list[str]:
    return [str(problem) for problem in of(text).problems]


PREFIXES = [
    "[demo-master-0] ",
    "[pod/demo-master-0/pytorch] ",
    "2026-01-02T03:04:05.678901234Z ",
    "2026-01-02T03:04:05.678901234Z stdout F ",
    "\x1b[32m[demo-master-0]\x1b[0m ",
    "\x1b[1m",
    "\x1b[2K\r",
    "epoch 1:  17%|█▋        | 3/18\r",
    "epoch 1:  17%|█▋        | 3/18",
    "progress\r\x1b[Aprogress\r\n",
    "torchtally: TORCHTALLY lines follow ",
    "TORCHTALLY_DEVICE=cpu ",
    'TORCHTALLY-EVENT {"v":1,"event":"proved","holds":true}\n',
    'TORCHTALLY-EVENT {"v":1,"ev',
]
SUFFIXES = ["\x1b[0m", " ", "\r", "50%|", "[demo-worker-0] step 3 {"]


@pytest.mark.parametrize(
    "text",
    [
        *(bruteforce.text(LINES, prefix) for prefix in PREFIXES),
        *(TEXT.replace("\n", f"{suffix}\n") for suffix in SUFFIXES),
        TEXT.rstrip(),
        TEXT.replace("\n", ""),
        TEXT + TEXT,
        json.dumps({"stream": "stdout", "log": ["of a program " * 2000]}) + "\n" + TEXT,  # not Docker's
        bruteforce.text([line | {"task": "TORCHTALLY {"} for line in LINES]),
        bruteforce.text([line | {"of a later release": 3} for line in LINES]),
    ],
)
def test_what_changes_nothing(text: str) -> None:
    assert problems(text) == []


def json_file(text: str) -> str:
    """As Docker writes it: pieces of 16 KiB, of which the last one has the end of the line."""
    entries = []
    for line in text.splitlines(keepends=True):
        pieces = [line[at : at + (16 << 10)] for at in range(0, len(line), 16 << 10)]
        entries += [{"log": piece, "stream": "stdout", "time": "2026-01-02T03:04:05.678901234Z"} for piece in pieces]
    return "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)


def cri(text: str) -> str:
    """As containerd writes it, with lines of stderr between the pieces."""
    time, lines = "2026-01-02T03:04:05.678901234Z", []
    for line in text.splitlines():
        for at in range(0, len(line), 16 << 10):
            tag = "P" if at + (16 << 10) < len(line) else "F"
            lines += [f"{time} stdout {tag} {line[at : at + (16 << 10)]}\n", f"{time} stderr F torchtally: hello\n"]
    return "".join(lines)


def collected(text: str, field: str) -> str:
    entry = {"stream": "stdout", "kubernetes": {"pod_name": "demo-master-0", "labels": {"a": "b"}}}
    return "".join(json.dumps({**entry, field: line}) + "\n" for line in text.splitlines())


def loki(text: str) -> str:
    values = [[str(number), line] for number, line in enumerate(text.splitlines())]
    return json.dumps({"status": "success", "data": {"result": [{"stream": {"pod": "a"}, "values": values}]}})


def table(text: str, **form: Any) -> str:
    rows = csv.writer(out := io.StringIO(), **form)
    rows.writerows([["@timestamp", "message"], *([number, line] for number, line in enumerate(text.splitlines()))])
    return out.getvalue()


def cloud(text: str) -> str:
    return json.dumps([{"textPayload": line} for line in text.splitlines()], indent=2)


def aws(text: str) -> str:
    messages = [json.dumps({"log": line, "stream": "stdout"}) for line in text.splitlines()]
    return json.dumps({"events": [{"timestamp": 1, "message": each} for each in messages]}, indent=4)


WRAPPED = {
    "CSV": table,
    "CSV with semicolons, all quoted": lambda text: table(text, delimiter=";", quoting=csv.QUOTE_ALL),
    "CSV of json-file": lambda text: table(json_file(text)),
    "gcloud": cloud,
    "aws": aws,
    "json-file": json_file,
    "CRI": cri,
    "Fluent Bit": lambda text: collected(text, "log"),
    "a collector": lambda text: collected(text, "message"),
    "logcli": lambda text: collected(text, "line"),
    "Loki": loki,
    "a collector of json-file": lambda text: collected(json_file(text), "log"),
    "behind a name": lambda text: "".join(f"[demo-master-0] {line}\n" for line in json_file(text).splitlines()),
}


@pytest.mark.parametrize("form", WRAPPED)
def test_lines_in_what_runtimes_and_collectors_make_of_them(form: str) -> None:
    text = f'[demo] step 1 {{\n{TEXT}"hello" {{}}\n'
    assert of(WRAPPED[form](text)).holds
    wrong = WRAPPED[form](text.replace('"consumed":30', '"consumed":31'))
    assert not of(wrong).holds


@pytest.mark.parametrize("wrapped", [json_file, cri])
def test_a_line_of_more_than_a_runtimes_16_kib_is_joined(wrapped: Any) -> None:
    long = TEXT.replace('"pod":"demo-worker-0"', f'"pod":"{"w" * 40_000}"')
    assert long != TEXT
    assert problems(wrapped(long)) == problems(long)
    first, *_ = wrapped(long).split("w" * 1000)
    assert any("cut off" in each or "has no end" in each for each in problems(f"{first}{'w' * 20_000}"))


def test_pieces_are_joined_with_those_of_their_own_pod_alone() -> None:
    def entry(pod: str, log: str) -> str:
        return json.dumps({"log": log, "stream": "stdout", "time": "", "kubernetes": {"pod_name": pod}}) + "\n"

    lines, padding = TEXT.splitlines(keepends=True), "-" * 16_384
    heads, tails = [padding + each[:300] for each in lines], [each[300:] for each in lines]
    pods = ["demo-master-0", "demo-worker-0", "demo-worker-1"]
    assert of("".join(map(entry, pods * 2, heads + tails))).holds
    alone = "".join(map(entry, pods, [*heads[:2], lines[2]]))
    assert not of(alone + entry(pods[0], tails[0]) + entry(pods[2], tails[1])).holds
    many = "".join(entry(f"other-{number}", padding) for number in range(100))
    assert any("cut off" in each for each in problems(entry(pods[0], heads[0]) + many + entry(pods[0], tails[0])))


def test_many_objects_on_one_line() -> None:
    entries = [{"log": line} for line in TEXT.splitlines()]
    assert of(json.dumps([{"log": "step"}] * 100 + entries * 20)).holds


def test_a_json_string_without_end_is_named() -> None:
    text = json_file(TEXT)
    found = problems(text[: text.rindex("digest")])
    assert (
        "demo.log:3: a tally line is in a JSON string that has no end, so that it cannot be read: TORCHTALLY"
        in found[0]
    )


def test_a_line_printed_twice_that_differs() -> None:
    found = problems(TEXT + SECOND.replace('"consumed":30', '"consumed":31').replace("demo-worker-0", "demo-worker-9"))
    said = (
        "train epoch 1 of rank 1 is printed twice and differs: pod demo-worker-0 and demo-worker-9; consumed 30 and 31"
    )
    assert found == [f"demo.log:4: {said}"]
    words = bruteforce.decoded(LINES[2]["digest"])
    words[3], words[16], words[19] = 0, 1, 2
    again = TOGETHER.replace(LINES[2]["digest"], bruteforce.encoded(words))
    found = problems(TEXT + again)
    said = "train epoch 1 of all ranks is printed twice and differs: digest in S_3, G, I_3"
    assert found == [f"demo.log:4: {said}"]
    assert of(TEXT + again).of(("train", 1))  # its row is marked


@given(st.integers(0, len(SECOND) - 1))
@example(len("TORCHTALLY "))
def test_a_line_cut_anywhere_is_no_evidence(length: int) -> None:
    found = problems(f"{FIRST}\n{SECOND[:length]}\n{TOGETHER}\n")
    assert "no tally line of rank 1 at all" in found
    if length >= len("TORCHTALLY "):
        assert found[0] == f"demo.log:2: a tally line is cut off: {SECOND[:length].rstrip()[:100]}" + "..." * (
            length > 100
        )


@given(st.integers(len("TORCHTALLY {"), len(FIRST) - 2))
def test_a_line_printed_into_another(at: int) -> None:
    found = problems(f"{FIRST[:at]}{SECOND}\n{FIRST[at:]}\n{TOGETHER}\n")
    assert found[0].startswith("demo.log:1: a tally line is ")
    assert found[1:] == ["no tally line of rank 0 at all"]  # the other one is whole


def test_a_mixed_up_line_is_told_from_one_cut_off() -> None:
    found = problems(TEXT.replace('"rank":1,', '"rank":\x1b[31mhello\n1,'))
    assert found[0].startswith('demo.log:2: a tally line is mixed up with other output: TORCHTALLY {"v":2,"run"')
    found = problems(TEXT.replace('{"v":2,', '{"v":\x1b[31mhello,', 1))
    assert 'TORCHTALLY {"v":?[31mhello' in found[0]  # no control characters reach the terminal


def test_a_cut_line_of_an_earlier_attempt_or_another_run_is_no_matter() -> None:
    def later(**values: Any) -> str:
        return bruteforce.text(bruteforce.run(world=2, plan={"train": 1}, **values))

    assert problems(SECOND[:200] + "\n" + later(attempt=1)) == []
    assert of(SECOND[:200] + "\n" + later(run="b") + later(run="c"), run="c").holds
    assert not of(later(attempt=1) + later(attempt=2)[:200] + "\n").holds
    assert len(problems(TEXT + later(attempt=1)[:200])) == 1
    assert len(problems(TEXT + 'TORCHTALLY {"v":2,')) == 1  # whose it is cannot be told: it counts


def test_a_cut_line_is_not_that_of_the_run_printed_into_it() -> None:
    into = 'TORCHTALLY {"v":2,' + bruteforce.text(bruteforce.run(world=2, plan={"train": 1}, run="b"))
    assert not of(TEXT + into, run=LINES[0]["run"]).holds


def test_what_is_no_tally_line() -> None:
    for text in "", "TORCHTALLY is a word\n", "TORCHTALLY_CACHE={}\n", '{"v":2}\n', "TORCHTALLY [1]\n":
        assert problems(text) == ["no tally line in demo.log"]


def test_a_job_that_failed_before_its_first_sample_has_its_cause() -> None:
    def ended(pod: str, code: int, kind: str | None, cause: str | None) -> str:
        event = events.Ended(code=code, kind=kind, cause=cause)
        return events.line(events.Record(5.0, events.Source(pod=pod), event)) + "\n"

    cause = ended("demo-master-0", 2, "known", "--batch-size is 0")
    consequence = ended("demo-worker-0", 203, "consequence", "demo-master-0 went away")
    for log in (cause + consequence, consequence + cause):
        assert of(log).notes == ["demo-master-0 ended with exit code 2: --batch-size is 0"]
    assert of(consequence).notes == ["demo-worker-0 ended with exit code 203: demo-master-0 went away"]
    [note] = of(ended("demo-master-0", 0, None, None)).notes
    assert "the program has no account" in note


def test_a_version_that_is_not_known() -> None:
    for shown in "3", "0", "2.5", '"2"', "null", "true", '"\\u001b[31m"':
        found = problems(TEXT.replace('"v":2', f'"v":{shown}', 1))
        assert (
            found[0]
            == f"demo.log:1: bad tally line: version {shown} of the line is not known here, only version 2 is read"
        )
    found = problems(TEXT.replace('"v":2', '"v":1', 1))
    said = "version 1 of the line is from an earlier torchtally, which can verify it; here, only version 2 is read"
    assert found[0] == f"demo.log:1: bad tally line: {said}"
    found = problems(TEXT.replace('"v":2,', "", 1))
    assert found[0] == 'demo.log:1: bad tally line: "v" (its version) is missing'


INTEGERS = {"attempt": (0, HUGE), "began": (0, 253_402_300_799_999), "epoch": (1, 1), "world": (1, 10**6)}
INTEGERS |= {"n": (1, 2**61 - 2), "start": (0, 60), "batch": (1, HUGE), "seed": (0, 2**64 - 1)}
INTEGERS |= dict.fromkeys(("expected", "consumed", "lost", "duplicated"), (0, HUGE)) | {"end": (1, 59)}
PLAN = "an object that gives each phase, named by printable text, its number of epochs, 0 to 1000000"
# By field: values that it cannot have, and what is allowed.
BAD: list[tuple[str, list[Any], str]] = [
    *((name, no_integers(*each), f"an integer from {each[0]} to {each[1]}") for name, each in INTEGERS.items()),
    *((name, NO_TEXTS, "printable text") for name in ("run", "pod", "task", "data")),
    ("phase", ["val", ["train"]], "train"),
    ("plan", [[1], {"train": -1}, {"train": 10**9}], PLAN),
    ("plan", [{"train": 1, "a\nb": 1}], PLAN),
    ("rank", no_integers(0, 1), 'an integer from 0 to 1 (world is 2), or "all"'),
    ("contract", ["most"], "exact or padded or drop_last"),
    ("order", ["feistel-2"], "feistel-1 or sequential or drawn or locality-1 with its window, lanes and fingerprint"),
    ("consumed", [29], "no less than the 30 samples that its digest counts"),
    ("digest", BAD_DIGESTS, DIGEST),
    ("lost", [None], f'an integer from 0 to {HUGE}, or null where "duplicated" is null too'),
    ("duplicated", [None], f'an integer from 0 to {HUGE}, or null where "lost" is null too'),
    ("lost_indices", [[1]], "a list of at most 0 integers from 0 to 59"),
    ("duplicated_indices", ["1"], f"a list of at most 0 integers from {-HUGE - 1} to {HUGE}"),
]


@pytest.mark.parametrize(("name", "values", "allowed"), BAD)
def test_values_that_cannot_be(name: str, values: list[Any], allowed: str) -> None:
    for value in values:
        [complaint] = read(bruteforce.text([LINES[0] | {name: value}, *LINES[1:]])).complaints
        shown = "" if name == "digest" else f"is {json.dumps(value)}, allowed is {allowed}"
        assert complaint.text.startswith(f'demo.log:1: bad tally line: "{name}" {shown}'), complaint
        assert f", allowed is {allowed}" in complaint.text


@pytest.mark.parametrize(("name", "value"), [("attempt", False), ("epoch", True), ("plan", {"train": True})])
def test_a_value_that_equals_the_right_one_of_the_line_before_is_not_right_for_that(name: str, value: Any) -> None:
    assert LINES[1][name] == value
    bad = bruteforce.text([LINES[0], LINES[1] | {name: value}, *LINES[2:]])
    assert problems(bad)[0].startswith(f'demo.log:2: bad tally line: "{name}" is ')


@pytest.mark.parametrize("indices", [[60], [-1], [True], [1.0], list(range(9))])
def test_indices_that_cannot_be(indices: list[Any]) -> None:
    bad = bruteforce.text([LINES[0] | {"lost": 20, "lost_indices": indices}, *LINES[1:]])
    said = f'"lost_indices" is {json.dumps(indices)}, allowed is a list of at most 8 integers from 0 to 59'
    assert problems(bad)[0] == f"demo.log:1: bad tally line: {said}"


def test_where_nothing_is_counted_nothing_is_named() -> None:
    unknown = LINES[0] | {"lost": None, "duplicated": None}
    assert problems(bruteforce.text([unknown, *LINES[1:]]))[0].startswith(
        "train epoch 1: rank 0: too many samples are lost"
    )
    found = problems(bruteforce.text([unknown | {"duplicated_indices": [1]}, *LINES[1:]]))
    assert '"duplicated_indices" is [1], allowed is a list of at most 0 integers' in found[0]


@pytest.mark.parametrize("name", sorted(LINES[0].keys() - {"v", "began"}))
def test_a_value_that_is_missing(name: str) -> None:
    bad = bruteforce.text([{key: value for key, value in LINES[0].items() if key != name}, *LINES[1:]])
    assert problems(bad)[0] == f'demo.log:1: bad tally line: "{name}" is missing'


def test_what_breaks_a_parser() -> None:
    assert "4300 digits" in problems(TEXT.replace('"n":60', f'"n":{"6" * 5000}', 1))[0]
    assert problems('TORCHTALLY {"v":' + "[" * 100_000)[0].startswith("demo.log:1: bad tally line: maximum recursion")


def test_the_number_of_a_line_is_that_of_an_editor() -> None:
    [found] = problems("a\rb\r\nc\n" + FIRST[:90])  # and nothing more is said of a log of cut lines alone
    assert found.startswith("demo.log:3: ")


def test_a_large_log_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    with path.open("w") as file:
        file.write("one long line " * 400_000)  # 5.6 MB without an end
        file.write(f"\n{FIRST}\n")
        for step in range(40_000):
            file.write(f"step {step} loss 0.1234 TORCHTALLY\rmore\n")
        file.write(f"{SECOND}\n{TOGETHER}\n")
    log = Log()
    tracemalloc.start()
    with path.open(newline="") as file:
        log.read("large.log", file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert judge(log)[0].holds
    assert path.stat().st_size > 7_000_000 and peak < 5_000_000
