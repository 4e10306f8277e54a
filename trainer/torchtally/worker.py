"""One rank of a built-in task: from its options to an exit code. torchrun's agent starts it (see launch.py)."""

import hashlib
import importlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from torchtally import agreement, checkpoint, device, failure, loop, options
from torchtally.cli import task_parser
from torchtally.course import Course
from torchtally.errors import LOST, OK, REFUSED, SIGNALLED, UNPROVEN, Lost, Refused, Stopped, Unproven, lost_a_peer
from torchtally.files import replace
from torchtally.job import Places, Process
from torchtally.keeper import FOLDER, Keeper, resume
from torchtally.tally import Run

_OF_NO_WEIGHT = ("save_seconds", "keep", "tally")  # options that may change when a training is taken up again


def main() -> int:
    """Train as sys.argv says and return the exit code."""
    arguments = task_parser("torchtally run").parse_args()
    try:
        _run(arguments.task, options.chosen(arguments))
    except Refused as sentence:
        return failure.end(sentence, REFUSED)
    except Unproven as sentence:
        return failure.end(sentence, UNPROVEN)
    except Stopped as stopped:
        return failure.end(stopped, SIGNALLED + stopped.number)
    except Lost as sentence:
        return failure.end(sentence, LOST)
    except Exception as error:
        if not lost_a_peer(f"{type(error).__name__}: {error}"):
            failure.record(error)
            raise
        return failure.end(Lost(f"another rank went away ({str(error).splitlines()[0]})"), LOST)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return OK


def _run(name: str, chosen: options.Training) -> None:
    process = Process.from_env(os.environ)
    places = Places.from_env(os.environ)
    output = chosen.output or places.output
    task: loop.Task = importlib.import_module(f"torchtally.tasks.{name.replace('-', '_')}").TASK

    # What fails on one pod is said by all of them, so it is carried to the agreement.
    problem = train = test = where = None
    try:
        where = device.choose(places.device, process.local_rank)
        if process.rank == 0:
            _prepare(output)
        train, test = task.load(chosen.data or places.data, places.cache)
    except Refused as sentence:
        problem = str(sentence)
    store, _, _ = next(rendezvous("env://"))
    asked = {name: value for name, value in vars(chosen).items() if name not in ("data", "output", "seed")}
    facts = {
        "world size": process.world,
        "seed": chosen.seed,
        "number of training samples": len(train) if train else None,
        "number of test samples": len(test) if test else None,
        "data": task.fingerprint,
        "options": asked,
        "device": where.type if where else None,
        "PyTorch": torch.__version__,
        "_run": process.run,
    }
    agreed = agreement.agree(store, process.rank, process.world, process.pod, facts, problem)
    assert train is not None and test is not None and where is not None

    # gloo carries the tallies and counts in any case; on GPUs NCCL carries the gradients.
    if where.type == "cuda":
        backend, bound = "cpu:gloo,cuda:nccl", where
    else:
        backend, bound = "gloo", None
    dist.init_process_group(
        backend, timeout=agreement.COLLECTIVE, store=store, rank=process.rank, world_size=process.world, device_id=bound
    )
    # What makes it the same training, whatever the number of ranks.
    same = ("seed", "number of training samples", "number of test samples", "data")
    kept = {"task": name} | {each: facts[each] for each in same}
    kept |= {f"option {each}": value for each, value in asked.items() if each not in _OF_NO_WEIGHT}
    folder = output / FOLDER
    state = resume(folder, kept, where)
    if state and state["epoch"] > chosen.epochs and process.rank == 0:
        print(
            f"torchtally: run {state['run']} in {output} is complete; another training needs another --output",
            flush=True,
        )
    keeper = Keeper(folder, kept, where, chosen.keep, chosen.save_seconds)
    keeper.listen()
    run = Run(
        run=state["run"] if state else agreed["_run"],
        attempt=state["attempt"] + 1 if state else process.attempt,
        pod=process.pod,
        task=name,
        plan={"train": chosen.epochs, "test": chosen.epochs},
        rank=process.rank,
        world=process.world,
        seed=chosen.seed,
        data=task.fingerprint,
    )
    course = loop.fit(task, chosen, run, train.to(where), test.to(where), where, keeper, state)
    if process.rank == 0:
        try:
            _save(course, output)
        except OSError as error:
            raise Refused(f"the model cannot be written to {output} (--output, TORCHTALLY_OUTPUT): {error}") from None
    dist.barrier()  # nobody is done before the model is safe


def _prepare(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        replace(output / ".writable", b"").unlink()
    except OSError as error:
        raise Refused(f"the output folder {output} (--output, TORCHTALLY_OUTPUT) cannot be written: {error}") from None


def _save(course: Course, output: Path) -> None:
    """Write the model, then its proof, each beside its place and renamed."""
    model = checkpoint.saved({name: value.cpu() for name, value in course.model.state_dict().items()})
    proof = {
        "holds": all(each.holds for each in course.proofs),
        "model": f"sha256:{hashlib.sha256(model).hexdigest()}",
        "epochs": [vars(epoch) for epoch in course.epochs],
        "lines": course.lines,
    }
    replace(output / "model.pt", model)
    replace(output / "proof.json", (json.dumps(proof, indent=1) + "\n").encode())
    print(f"torchtally: wrote {output / 'model.pt'} ({proof['model']}) and {output / 'proof.json'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
