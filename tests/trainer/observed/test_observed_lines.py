"""The lines of real passes keep to the schema of the documentation, and say what was handed out."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from torchtally.observed.log import Lines
from torchtally_observer.line import LONGEST, PREFIX

REFERENCE = Path(__file__).parents[3] / "docs/reference"
START = """
import os
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset, TensorDataset
os.environ["TORCHTALLY_OBSERVE"] = "auto"
from torchtally_observer import start
start.start()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(*_):
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()

class Rows(IterableDataset):
    def __iter__(self):
        for number in range(300):
            yield {"id": f"row {number}", "x": number} if keyed else number

class Named(dict):
    pass

points = TensorDataset(torch.arange(3000.0).unsqueeze(1), torch.arange(3000) % 10)
"""
PASSES = """
for batch in DataLoader(points, batch_size=100, sampler=DistributedSampler(points, num_replicas=2, rank=1)):
    step()
for batch in DataLoader(Subset(range(900), range(5, 500, 3)), batch_size=10, sampler=[0, 0, 1]):
    pass
for keyed in (False, True):
    for batch in DataLoader(Rows(), batch_size=7):
        pass
for batch in DataLoader(points, batch_size=100, shuffle=True):
    break
for sample in DataLoader(Named(a=1, b=2), batch_size=None, sampler=["a", "b"]):
    pass
few = DataLoader(range(4), batch_size=2)
for _ in range(260):
    for batch in few:
        pass
"""
OF_STEPS = """
import torch
def loader(n):
    return DataLoader(TensorDataset(torch.zeros(n, 1)), batch_size=1)

step()  # before any batch
for first, second in zip(loader(10), loader(20)):  # as of a GAN: a step for both
    step()
second = iter(loader(23))
for number, (batch, other) in enumerate(zip(loader(16), loader(22))):  # accumulated, and a third one now and then
    if number % 4 == 2:
        next(second)
    if number % 2:
        step()
for batch in loader(11):  # two steps, and an evaluation before them
    with torch.no_grad():
        next(iter(loader(21)))
    step(); step()
for number, batch in enumerate(loader(12)):  # accumulated
    if number % 4 == 3:
        step()
taken = next(iter(loader(13)))  # its iterator is gone before the step
step()
with torch.no_grad():
    kept = [*loader(14)]
for batch in kept:  # a list of batches, once its pass is over
    step()
"""
FAILING = """
from torchtally_observer.indices import Indices
Indices.add = lambda *_: 1 / 0
for batch in DataLoader(points, batch_size=1000):
    pass
"""


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((REFERENCE / "observation.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def printed(program: str, tmp_path: Path) -> list[str]:
    (file := tmp_path / "train.py").write_text(START + program)
    ended = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True, timeout=300)
    return [line for line in ended.stderr.splitlines() if line.startswith(PREFIX)]


def checked(lines: list[str], validator: jsonschema.Draft202012Validator) -> list[dict[str, Any]]:
    """The values of lines that are valid, short, and read by the verifier."""
    read = Lines()
    for line in lines:
        assert len(line) < LONGEST
        values = json.loads(line.removeprefix(PREFIX))
        validator.validate(values)
        assert values.keys() <= described(validator.schema)
        read.add(line)
    assert not read.unread
    return [json.loads(line.removeprefix(PREFIX)) for line in lines]


def described(schema: dict[str, Any]) -> set[str]:
    """The fields of all kinds of lines."""
    return {*schema["properties"], *(name for each in schema["oneOf"] for name in each["properties"])}


def test_the_lines_of_passes(validator: jsonschema.Draft202012Validator, tmp_path: Path) -> None:
    sampled, subset, stream, keyed, left, named, *few, rest = checked(printed(PASSES, tmp_path), validator)
    whole = [line["end"] for line in (sampled, subset, stream, keyed, named)]
    assert (whole, left["end"], left["batches"], left["of"]) == (["whole"] * 5, "left", 1, 30)
    samples = [line["samples"] for line in (sampled, subset, stream, keyed, left, named)]
    assert samples == [1500, 3, 300, 300, 100, 2]
    assert (sampled["steps"], subset["steps"]) == (15, 0)
    assert sampled["sampler"] == {
        **{"type": "DistributedSampler", "seed": 0, "epoch": 0, "rank": 1, "num_replicas": 2},
        **{"shuffle": True, "drop_last": False},
    }
    assert (subset["sums"], subset["holds"]["samples"]) == (["18", "114", "762"], 165)  # of 5, 5, and 8
    assert "twice" in subset and "holds" not in sampled
    assert (stream["rows"], stream["keys"], keyed["keys"], named["keys"]) == (300, False, True, True)
    assert [line["pass"] for line in few] == [*range(256)]
    assert (rest["passes"], rest["batches"], rest["samples"]) == (4, 8, 16)


def test_steps_count_for_the_batches_that_they_use(validator: jsonschema.Draft202012Validator, tmp_path: Path) -> None:
    found: dict[int, list[tuple[int, int]]] = {}
    for line in checked(printed(OF_STEPS, tmp_path), validator):
        found.setdefault(line["loader"]["length"], []).append((line["steps"], line.get("beside", 0)))
    assert (found[10], found[20]) == ([(0, 10)], [(10, 0)])
    assert (found[16], found[22], found[23]) == ([(0, 8)], [(8, 0)], [(0, 4)])
    assert (found[11], found[21]) == ([(22, 0)], [(0, 0)] * 11)
    assert (found[12], found[13], found[14]) == ([(3, 0)], [(1, 0)], [(0, 0), (14, 0)])


def test_a_line_without_a_loader(validator: jsonschema.Draft202012Validator, tmp_path: Path) -> None:
    (line,) = checked(printed("step(); step()", tmp_path), validator)
    assert (line["steps"], line["unseen"]) == (2, "no DataLoader")


def test_a_line_of_an_observer_that_has_stopped(validator: jsonschema.Draft202012Validator, tmp_path: Path) -> None:
    (line,) = checked(printed(FAILING, tmp_path), validator)
    assert re.fullmatch(r"ZeroDivisionError in train\.py:\d+", line["off"])


def test_the_schema_refuses_what_is_no_line(validator: jsonschema.Draft202012Validator) -> None:
    values = example()
    validator.validate(values)
    for name, value in values.items():
        if name in ("local", "of", "steps", "contents"):
            continue
        missing = {other: each for other, each in values.items() if other != name}
        for mutant in (missing, values | {name: [value, "x"]}):
            assert not validator.is_valid(mutant), (name, mutant)


def test_the_page_has_each_field_and_an_example_that_the_verifier_reads() -> None:
    text = (REFERENCE / "observation.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    schema = json.loads((REFERENCE / "observation.schema.json").read_text())
    assert documented == described(schema)
    (read := Lines()).add(f"{PREFIX}{json.dumps(example())}")
    assert len(read.handed) == 1 and not read.unread


def example() -> dict[str, Any]:
    (line,) = re.findall(rf"^{PREFIX}(.*)$", (REFERENCE / "observation.md").read_text(), re.MULTILINE)
    found: dict[str, Any] = json.loads(line)
    return found
