"""Trainings of a user's own, from examples/: what starts them in pods, and what follows from their weights."""

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from cluster import KIND_VALUES, ROOT, Namespace, data_values, own_program
from faults import MASTER
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Training:
    name: str  # in the table
    script: str
    arguments: tuple[str, ...]
    whole: str  # pattern of a path below /: of a file that each whole checkpoint has, and no other
    result: Callable[[Path, str], str]  # of the output's folder and the master's log
    libraries: tuple[str, ...] = ()  # which the image lacks
    data: str | None = None  # of the nodes

    def start(self, namespace: Namespace, *options: str, image: str | None = None) -> None:
        command = own_program("python", f"/files/{self.script}", *self.arguments)
        key = self.script.replace(".", r"\.")
        script = ["--set-file", f"files.{key}={ROOT / 'examples' / self.script}"]
        shared = ["--set", "model.accessMode=ReadWriteMany"]
        libraries = [{"name": "PYTHONPATH", "value": "/libraries"}] if self.libraries else []
        env = ["--set-json", f"env={json.dumps(libraries)}"]
        data = data_values(self.data) if self.data else []
        namespace.install(*KIND_VALUES, *script, *shared, *command, *env, *data, *options, image=image)

    def outcome(self, namespace: Namespace) -> str:
        """What follows from the weights, once the job has succeeded."""
        namespace.wait_for_job("demo", "Succeeded")
        return self.result(ROOT / "build/e2e/shared" / namespace.name, namespace.log(MASTER))


def _hash(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def _sample(output: Path, log: str) -> str:
    (found,) = re.findall("^sample: (.*)$", log, re.MULTILINE)
    return found


def _newest(folders: str) -> Callable[[Path, str], str]:
    def result(output: Path, log: str) -> str:
        newest = max(output.glob(folders), key=lambda path: int(path.name.partition("-")[2]))
        return _hash(load_file(newest / "model.safetensors"))

    return result


def _of_lightning(output: Path, log: str) -> str:
    # The file is the test's own, and holds Lightning's classes.
    return _hash(torch.load(output / "lightning/last.ckpt", weights_only=False)["state_dict"])


def _of_keras(output: Path, log: str) -> str:
    return hashlib.sha256(zipfile.ZipFile(output / "model.keras").read("model.weights.h5")).hexdigest()


def _factors(output: Path, log: str) -> str:
    (found,) = re.findall("^factors: (.*)$", log, re.MULTILINE)
    return found


GPT = Training(
    name="GPT under FSDP2",
    script="gpt.py",
    arguments=("--steps", "400", "--batch", "4", "--length", "16", "--width", "16", "--save-every", "0.5"),
    whole="output/gpt/*-epoch-*/manifest.json",
    result=_sample,
)
TRANSFORMERS = Training(
    name="Hugging Face Trainer",
    script="hf_trainer.py",
    arguments=("--output", "/output/hf"),
    whole="output/hf/checkpoint-*/trainer_state.json",
    result=_newest("hf/checkpoint-*"),
    libraries=("transformers", "accelerate"),
)
ACCELERATE = Training(
    name="Accelerate",
    script="accelerate_loop.py",
    arguments=("--output", "/output/accelerate"),
    whole="output/accelerate/step-*/model.safetensors",
    result=_newest("accelerate/step-*"),
    libraries=("accelerate",),
)
LIGHTNING = Training(
    name="Lightning",
    script="lightning_fit.py",
    arguments=("--output", "/output/lightning"),
    whole="output/lightning/last.ckpt",
    result=_of_lightning,
    libraries=("lightning",),
)
KERAS = Training(
    name="Keras",
    script="keras_fit.py",
    arguments=("--samples", "20000"),
    whole="output/backup/*.weights.h5",
    result=_of_keras,
    libraries=("keras",),
    data="mnist",
)
MDS = Training(
    name="MDS",
    script="mds.py",
    arguments=("--local", "/output/data", "--output", "/output/mds", "--save-every", "0.5"),
    whole="output/mds/*-epoch-*/manifest.json",
    result=_factors,
    libraries=("mosaicml-streaming",),
)
TRAININGS = [GPT, TRANSFORMERS, ACCELERATE, LIGHTNING, KERAS, MDS]
LIBRARIES = {library for training in TRAININGS for library in training.libraries}
IN_THE_IMAGE = ["numpy", "torch", "torchvision"]  # and a second one beside it would be taken in its place
